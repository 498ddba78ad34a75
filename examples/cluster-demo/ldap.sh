#!/usr/bin/env bash
# ldap.sh NAME KEY: makes this Debian machine the LDAP server NAME of example.org, over TLS, with the user alice and her ssh key.
set -euo pipefail
name=$1 key=$2
export DEBIAN_FRONTEND=noninteractive
debconf-set-selections <<< "slapd slapd/domain string example.org
slapd shared/organization string example
slapd slapd/password1 password admin
slapd slapd/password2 password admin"
apt-get update -qq
apt-get install -qq -y slapd ldap-utils openssl > /dev/null
openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj "/CN=$name" -addext "subjectAltName=DNS:$name" \
    -keyout /etc/ldap/server.key -out /etc/ldap/server.pem 2> /dev/null
chown openldap /etc/ldap/server.key
chmod 600 /etc/ldap/server.key
sed -i 's|^SLAPD_SERVICES=.*|SLAPD_SERVICES="ldap:/// ldaps:/// ldapi:///"|' /etc/default/slapd
ldapadd -Q -Y EXTERNAL -H ldapi:/// <<'LDIF'
dn: cn=openssh-lpk,cn=schema,cn=config
objectClass: olcSchemaConfig
cn: openssh-lpk
olcAttributeTypes: ( 1.3.6.1.4.1.24552.500.1.1.1.13 NAME 'sshPublicKey' EQUALITY octetStringMatch SYNTAX 1.3.6.1.4.1.1466.115.121.1.40 )
olcObjectClasses: ( 1.3.6.1.4.1.24552.500.1.1.2.0 NAME 'ldapPublicKey' SUP top AUXILIARY MAY ( sshPublicKey $ uid ) )
LDIF
ldapmodify -Q -Y EXTERNAL -H ldapi:/// <<'LDIF'
dn: cn=config
changetype: modify
add: olcTLSCertificateFile
olcTLSCertificateFile: /etc/ldap/server.pem
-
add: olcTLSCertificateKeyFile
olcTLSCertificateKeyFile: /etc/ldap/server.key
LDIF
systemctl restart slapd
ldapadd -x -H ldapi:/// -D cn=admin,dc=example,dc=org -w admin <<LDIF
dn: ou=services,dc=example,dc=org
objectClass: organizationalUnit

dn: cn=nodes,ou=services,dc=example,dc=org
objectClass: organizationalRole
objectClass: simpleSecurityObject
userPassword: asked

dn: ou=people,dc=example,dc=org
objectClass: organizationalUnit

dn: ou=groups,dc=example,dc=org
objectClass: organizationalUnit

dn: uid=alice,ou=people,dc=example,dc=org
objectClass: inetOrgPerson
objectClass: posixAccount
objectClass: ldapPublicKey
cn: Alice
sn: Alice
uidNumber: 70001
gidNumber: 70001
homeDirectory: /home/alice
loginShell: /bin/bash
sshPublicKey: $key

dn: cn=alice,ou=groups,dc=example,dc=org
objectClass: posixGroup
gidNumber: 70001

dn: cn=train,ou=groups,dc=example,dc=org
objectClass: posixGroup
gidNumber: 70100
memberUid: alice
LDIF
