"""The Pod Security standard `restricted`, as its rules are written, for the parts of a pod that we render.

Source: https://kubernetes.io/docs/concepts/security/pod-security-standards/
"""

from __future__ import annotations

from typing import Any

__all__ = ["violations"]

_VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}
_PROFILES = ("RuntimeDefault", "Localhost")


def violations(pod: dict[str, Any], *, user_of_the_image: int = 0) -> list[str]:
    """What an API server would say of a PodSpec in a namespace that enforces `restricted`.

    Args:
        pod: the spec.
        user_of_the_image: whom a container runs as that says nothing.
    """
    found = [f"{key} is set" for key in ("hostNetwork", "hostPID", "hostIPC") if pod.get(key)]
    found += [f"volume {one['name']}" for one in pod.get("volumes", []) if not _VOLUMES & set(one)]
    own = pod.get("securityContext", {})
    for container in [*pod.get("initContainers", []), *pod["containers"]]:
        found += [f"{container['name']}: {one}" for one in _of_a_container(container, own, user_of_the_image)]
    return found


def _of_a_container(container: dict[str, Any], pod: dict[str, Any], user_of_the_image: int) -> list[str]:
    own = container.get("securityContext", {})
    both = pod | own
    rules = {
        "privileged": bool(own.get("privileged")),
        "allowPrivilegeEscalation != false": own.get("allowPrivilegeEscalation") is not False,
        "unrestricted capabilities": "ALL" not in own.get("capabilities", {}).get("drop", []),
        "added capabilities": bool(set(own.get("capabilities", {}).get("add", [])) - {"NET_BIND_SERVICE"}),
        "runAsNonRoot != true": both.get("runAsNonRoot") is not True,
        "runAsUser=0": both.get("runAsUser", user_of_the_image) == 0,
        "seccompProfile": both.get("seccompProfile", {}).get("type") not in _PROFILES,
        "hostPort": any("hostPort" in port for port in container.get("ports", [])),
    }
    return [rule for rule, is_broken in rules.items() if is_broken]
