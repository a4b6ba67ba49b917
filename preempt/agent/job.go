package agent

import (
	"fmt"
	"hash/fnv"
	"os"
	"strings"
)

// Variables that launchers set for the processes of a job: the same values for all of a job and for no other.
var jobVariables = [][]string{
	{"GPREEMPT_JOB"},
	{"SLURM_JOB_ID", "SLURM_STEP_ID"},
	{"PMIX_NAMESPACE"},             // Open MPI, PRRTE
	{"MASTER_ADDR", "MASTER_PORT"}, // PyTorch, DeepSpeed, Lightning
}

// jobOf returns a number for the job of this process. Processes of a job may wait for each other, on whichever GPUs they
// are. Without any of the variables the children of one process are a job.
func jobOf(getenv func(string) string, program string) uint64 {
	h := fnv.New64a()
	for _, variables := range jobVariables {
		var values []string
		for _, name := range variables {
			if value := getenv(name); value != "" {
				values = append(values, value)
			}
		}
		if len(values) == len(variables) {
			fmt.Fprintf(h, "%q %q", variables, values)
			return h.Sum64()
		}
	}
	namespace, _ := os.Readlink("/proc/self/ns/pid")
	fmt.Fprintf(h, "%s %s %s", namespace, statOf(program, parent), statOf(statOf(program, parent), start))
	return h.Sum64()
}

// Fields of proc_pid_stat, the first being 1; 2 is the name, in brackets. Process numbers are reused: start, in ticks since boot, tells them
// apart.
const parent, start = 4, 22

// programInProc is the program's number in /proc, which may be of another PID namespace than the program: the helper is a child of its child.
func programInProc() string { return statOf(statOf("self", parent), parent) }

func statOf(process string, field int) string {
	if process == "" {
		return ""
	}
	text, _ := os.ReadFile("/proc/" + process + "/stat")
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(fields) < field-2 {
		return ""
	}
	return fields[field-3]
}
