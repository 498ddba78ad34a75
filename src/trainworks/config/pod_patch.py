"""`cluster.kubernetes.patch`: what a run file changes in the template of its pods."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trainworks.errors import UsageError

MERGE_KEYS = {
    "containers": "name",
    "env": "name",
    "hostAliases": "ip",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "ports": "containerPort",
    "resourceClaims": "name",
    "topologySpreadConstraints": "topologyKey",
    "volumeDevices": "devicePath",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
"""Lists of a pod whose entries are merged, and the field that identifies an entry; a patch replaces any other list.

Source: `patchMergeKey` in the Kubernetes API, core/v1."""
POD_CONTAINER = "node"
"""Name of the container that runs Trainworks; Kubeflow's runtimes use the same."""
_POD = {"hostname", "restartPolicy", "subdomain"}
_CONTAINER = {"args", "command", "image"}


def checked_pod_patch(patch: dict[str, Any]) -> dict[str, Any]:
    """Refuse a patch that is not one of a pod template, or that changes what a job needs.

    Raises:
        UsageError: names the first such field.
    """
    if unknown := patch.keys() - {"metadata", "spec"}:
        hint = "write `patch: {spec: {...}}`, as in the template of a Deployment"
        raise UsageError(f"`{min(unknown)}` is not part of a pod template", hint=hint)
    for part in ("metadata", "spec"):
        if not isinstance(patch.get(part, {}), Mapping):
            raise UsageError(f"`{part}` is not a mapping", hint=f"write `patch: {{{part}: {{...}}}}`")
    if unknown := patch.get("metadata", {}).keys() - {"annotations", "labels"}:
        raise UsageError(f"`metadata.{min(unknown)}` cannot be set", hint="set `annotations` and `labels` alone")
    spec = patch.get("spec", {})
    for path, entry in _entries(spec, "spec"):
        key = MERGE_KEYS[path.rpartition(".")[2]]
        if not isinstance(entry, Mapping) or key not in entry:
            raise UsageError(f"an entry of `{path}` has no `{key}`", hint=f"add `{key}`, which identifies the entry")
    containers = spec.get("containers")
    own = [one for one in containers if one["name"] == POD_CONTAINER] if isinstance(containers, list) else []
    fixed = [*(_POD & spec.keys()), *(_CONTAINER & {name for container in own for name in container})]
    if fixed:
        raise UsageError(f"`{min(fixed)}` is set by Trainworks", hint="use the other fields of `cluster.kubernetes`")
    return patch


def _entries(value: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    """Entries of the lists that are merged, each with the path of its list."""
    for key, item in value.items():
        if isinstance(item, Mapping):
            yield from _entries(item, f"{path}.{key}")
        elif isinstance(item, list) and key in MERGE_KEYS:
            for entry in item:
                yield f"{path}.{key}", entry
                if isinstance(entry, Mapping):
                    yield from _entries(entry, f"{path}.{key}")


def patched(template: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """A template with a patch, merged as `kubectl patch` does: mappings field by field, null removes a field.

    >>> patched({"a": 1, "env": [{"name": "X", "value": "1"}]}, {"a": None, "env": [{"name": "Y"}]})
    {'env': [{'name': 'X', 'value': '1'}, {'name': 'Y'}]}
    """
    merged = dict(template)
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping):
            before = merged.get(key)
            merged[key] = patched(before if isinstance(before, Mapping) else {}, value)
        elif isinstance(value, list) and key in MERGE_KEYS:
            name = MERGE_KEYS[key]
            entries = {
                entry[name]: dict(entry) for entry in merged.get(key) or ()
            }  # in their order; new ones come last
            for change in value:
                entries[change[name]] = patched(entries.get(change[name], {}), change)
            merged[key] = list(entries.values())
        else:
            merged[key] = value
    return merged
