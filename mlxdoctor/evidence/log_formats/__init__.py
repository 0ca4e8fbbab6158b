"""One file a format of training logs; `mlxdoctor.evidence.logs.log_format` says what one is."""
