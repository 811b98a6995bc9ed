"""What a stage has on disk: `store` (journal and snapshots), `shelf` (the logs), `mark` (how far numbers were given), and what
is done when that is damaged: `examining`, `salvage`.
"""
