"""TD3 and TD7: networks, losses and the update, as in the papers.

An agent sees batches and observations only. No file here knows an environment, a replay buffer or a file on the disk.
"""
