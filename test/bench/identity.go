package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gpreempt/gpreempt/test/bench/result"
	"github.com/gpreempt/gpreempt/test/bench/workload"
)

// Programs that print what they computed, without the library and with it in each role, all four at once on one GPU. They
// are no workers: they end by themselves.

const identityLimit = 120 * time.Second // of a program

func identityCases() (cases []Case) {
	for _, one := range workload.Programs {
		if !one.Identity {
			continue
		}
		program := one.Name
		// The slowest program takes 26 s, the median 6 s.
		cases = append(cases, Case{"identity-" + program, "identical with role off, lc and be", []string{"identity"}, 15,
			func(ctx context.Context, s *session, name string) error { return s.measureProgram(ctx, name, program) }})
	}
	return cases
}

func (s *session) measureProgram(ctx context.Context, name, program string) error {
	roles := []string{"", "off", "lc", "be"}
	printed, problems := make([]string, len(roles)), make([]error, len(roles))
	var all sync.WaitGroup
	for i, role := range roles {
		all.Go(func() {
			printed[i], problems[i] = s.output(ctx, programRun{program: program, role: role, limit: identityLimit})
		})
	}
	all.Wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if problems[0] != nil {
		return fmt.Errorf("without the library: %w", problems[0])
	}
	identical := 0
	var notes []string
	for i, role := range roles {
		switch {
		case i == 0:
		case problems[i] != nil:
			notes = append(notes, fmt.Sprintf("%s: %v", role, problems[i]))
		case printed[i] != printed[0]:
			notes = append(notes, fmt.Sprintf("%s: printed %.200q, not %.200q", role, printed[i], printed[0]))
		default:
			identical++
		}
	}
	value := float64(identical)
	row := result.Row{Case: name, System: "gpreempt", Value: &value, Unit: "of 3 identical", Note: strings.Join(notes, "; ")}
	s.add(row.Judged("identical with role off, lc and be", identical == len(roles)-1))
	return nil
}

// programRun is a run of a program of torch/programs.
type programRun struct {
	program, role string
	limit         time.Duration
	beside        func(pid int) (end func()) // what goes on while it runs; may be nil
}

// lacks is the exit status of a program that cannot run on this machine; its last line on standard error says what it lacks.
const lacks = 77

// output runs a program and returns what it prints.
func (s *session) output(ctx context.Context, run programRun) (string, error) {
	program := run.program
	if s.python == "" {
		return "", fmt.Errorf("%s needs %s with PyTorch; name it with --python", program, s.options.Python)
	}
	folder, err := os.MkdirTemp(s.files, program+"-")
	if err != nil {
		return "", fmt.Errorf("make a folder for %s: %w", program, err)
	}
	ctx, cancel := context.WithTimeout(ctx, run.limit)
	defer cancel()
	command := inGroup(ctx, s.python, filepath.Join(s.files, "programs", program+".py"))
	command.Dir = folder
	command.Env = append(s.environment(run.role), "PYTHONDONTWRITEBYTECODE=1", "CUBLAS_WORKSPACE_CONFIG=:4096:8",
		"XLA_PYTHON_CLIENT_PREALLOCATE=false", "PYTHONHASHSEED=0")
	for _, cache := range []string{"TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUPY_CACHE_DIR", "NUMBA_CACHE_DIR"} {
		// Code that one run has compiled serves no other.
		command.Env = append(command.Env, cache+"="+filepath.Join(folder, strings.ToLower(cache)))
	}
	// The program prints into files: a process that it leaves behind may hold them.
	var outputs [2]*os.File
	for i := range outputs {
		if outputs[i], err = os.CreateTemp(folder, "output-"); err != nil {
			return "", fmt.Errorf("make a file for what %s prints: %w", program, err)
		}
		defer outputs[i].Close()
	}
	command.Stdout, command.Stderr = outputs[0], outputs[1]
	if err = startChild(command); err == nil {
		if run.beside != nil {
			defer run.beside(command.Process.Pid)()
		}
		err = command.Wait()
	}
	if command.Process != nil {
		_ = syscall.Kill(-command.Process.Pid, syscall.SIGKILL) // what it left behind, if anything
	}
	text, readErr := os.ReadFile(outputs[0].Name())
	said, _ := os.ReadFile(outputs[1].Name())
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return "", fmt.Errorf("no end in %s", run.limit)
	case command.ProcessState != nil && command.ProcessState.ExitCode() == lacks, strings.HasPrefix(lastLine(string(said)), "ModuleNotFoundError: "):
		return "", leftOut(lastLine(string(said)))
	case err != nil:
		return "", fmt.Errorf("%w: %s", err, lastLines(said))
	}
	return string(bytes.TrimSpace(text)), readErr
}
