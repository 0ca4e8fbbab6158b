"""The watch: a running training is judged report by report, and alarmed at beyond doubt."""
