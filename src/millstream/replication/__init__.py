"""Leader and follower of one partition: ISR, high watermark, truncation. Not built yet."""
