"""cfn-init, cfn-signal, cfn-get-metadata and cfn-hup of the local image, in place of Amazon Linux's aws-cfn-bootstrap.

They need only the standard library and Python 3.9. What AWS's do is in docs/aws-behaviour.md, section 1.
"""
