"""A private Ray cluster on this machine for one job: started, given the job by `ray job submit`, taken down again."""
