"""`mlxdoctor bisect`: which saved checkpoint of a run is the last good one, and which the best."""
