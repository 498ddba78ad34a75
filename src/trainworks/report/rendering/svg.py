"""Elements of SVG and HTML pictures, escaped by the standard library's ElementTree."""

from __future__ import annotations

from xml.etree.ElementTree import Element, SubElement, tostring


def element(tag: str, *children: Element, text: str | None = None, **attributes: object) -> Element:
    """An element; `css` is its class, an underscore stands for a hyphen, and attributes that are None are left out."""
    names = {name: "class" if name == "css" else name.replace("_", "-") for name in attributes}
    node = Element(tag, {names[name]: str(value) for name, value in attributes.items() if value is not None})
    node.text = text
    node.extend(children)
    return node


def with_title(node: Element, title: str) -> Element:
    """The element with a tooltip."""
    SubElement(node, "title").text = title
    return node


def percent(value: float, digits: int = 2) -> str:
    """A length relative to the picture."""
    return f"{value:.{digits}f}%"


def markup(node: Element) -> str:
    """The element as text; empty elements other than shapes are closed by a tag of their own, as HTML wants it."""
    return tostring(node, encoding="unicode", short_empty_elements=False)
