"""The role `directory`: users and keys of a site from its LDAP servers, which sssd asks on every node."""

from __future__ import annotations

from collections.abc import Mapping

from trainworks.config.stack import Stack
from trainworks.deploy.layers import operating_system
from trainworks.deploy.templating import render


def directory_files(stack: Stack) -> dict[str, str]:
    """Files of the role `directory` by path; sssd.conf is a template of Ansible, which fills in the password.

    Source: sssd.conf(5), sssd-ldap(5) and sss_ssh_authorizedkeys(1) of sssd 2.8; sshd_config(5).
    """
    if (directory := stack.directory) is None:
        return {}
    scheme = "ldaps" if directory.tls == "ldaps" else "ldap"
    servers = [f"{scheme}://{each}" for each in directory.servers]
    sssd = render("directory/sssd.conf", directory=directory, servers=servers, cluster=stack.name, admin=stack.admin)
    files = {"templates/sssd.conf.j2": sssd, "files/50-directory.conf": render("directory/sshd.conf")}
    files |= {"files/directory-ca.pem": directory.ca} if directory.ca else {}
    return {f"roles/directory/{name}": text for name, text in files.items()}


def directory_variables(stack: Stack, *, has_local_homes: bool) -> Mapping[str, object]:
    """Variables of the role `directory`; it is left out without its packages."""
    directory, system = stack.directory, operating_system(stack)
    read = "{{ lookup('ansible.builtin.file', playbook_dir ~ '/secrets/directory.password') }}"
    return {
        "directory_has_ca": directory is not None and directory.ca is not None,
        "directory_password": read if directory is not None and directory.bind is not None else "",
        "directory_features": ["with-mkhomedir"] if has_local_homes else [],
        "logins_backend": system.logins,
        "sssd_group": system.sssd_group,
    }
