export SITE=hall
