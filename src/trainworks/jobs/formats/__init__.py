"""Writers of jobs in the formats of other systems: JobSet, TrainJob, SkyPilot task, LSF script."""
