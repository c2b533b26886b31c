"""Starts a private Ray on this machine for one job, submits the job, and always stops the Ray."""
