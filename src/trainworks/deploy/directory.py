"""The role `directory`: users and keys of a site from its LDAP servers, which sssd asks on every node."""

from __future__ import annotations

from collections.abc import Mapping

from trainworks.config.stack import Stack
from trainworks.deploy.layers import operating_system
from trainworks.deploy.templating import render

HOMES = "/home"
SSSD_CONF = "roles/directory/templates/sssd.conf.j2"
"""A template of Ansible, which fills in the password."""
_PASSWORD = "{{ directory_password }}"  # noqa: S105, a name


def directory_files(stack: Stack) -> dict[str, str]:
    """Files of the role `directory` by path; none without one.

    Source: sssd.conf(5), sssd-ldap(5) and sss_ssh_authorizedkeys(1) of sssd 2.8; sshd_config(5).
    """
    if (directory := stack.directory) is None:
        return {}
    scheme = "ldaps" if directory.tls == "ldaps" else "ldap"
    servers = [f"{scheme}://{each}" for each in directory.servers]
    sssd = render("directory/sssd.conf", directory=directory, servers=servers, cluster=stack.name, admin=stack.admin)
    files = {SSSD_CONF: sssd, "roles/directory/files/50-directory.conf": render("directory/sshd.conf")}
    return files | ({"roles/directory/files/directory-ca.pem": directory.ca} if directory.ca else {})


def with_password(sssd_conf: str, password: str) -> str | None:
    """sssd.conf with its password; None where it needs one that is not known."""
    return sssd_conf.replace(_PASSWORD, password) if password or _PASSWORD not in sssd_conf else None


def has_local_homes(stack: Stack) -> bool:
    """Whether users of a directory have another home on every node, which is made as they come."""
    return stack.directory is not None and all(mount.at != HOMES for mount in stack.mounts)


def directory_variables(stack: Stack) -> Mapping[str, object]:
    """Variables of the role `directory`; it is left out without its packages."""
    directory, system = stack.directory, operating_system(stack)
    read = "{{ lookup('ansible.builtin.file', playbook_dir ~ '/secrets/directory.password') }}"
    return {
        "directory_has_ca": directory is not None and directory.ca is not None,
        "directory_password": read if directory is not None and directory.bind is not None else "",
        "directory_features": ["with-mkhomedir"] if has_local_homes(stack) else [],
        "logins_backend": system.logins,
        "sssd_group": system.sssd_group,
    }
