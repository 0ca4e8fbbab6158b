"""Before the hours are spent: would this run fail, does it fit, how long does it take?"""
