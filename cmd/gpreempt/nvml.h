// nvml.h - see nvml.c.
#ifndef GPREEMPT_COMMAND_NVML_H
#define GPREEMPT_COMMAND_NVML_H

void probe_processes(void);

#endif
