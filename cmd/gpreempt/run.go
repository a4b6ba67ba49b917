package main

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/internal/cli"
)

func runCommand() *cobra.Command {
	var said saying
	command := &cobra.Command{
		Use:   "run [flags] -- program [argument]...",
		Short: "Run a program under the library",
		Long: "Runs a program with libgpreempt.so added to LD_PRELOAD. The program replaces this command, and the\n" +
			"programs that it starts inherit the setting.",
		Example: "  gpreempt run --priority lc -- python3 serve.py\n  gpreempt run --priority be -- python3 train.py",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cli.Usage(errors.New("run: which program? For example: gpreempt run --priority be -- python3 train.py"))
			}
			return nil
		},
		RunE: func(command *cobra.Command, args []string) error {
			env, err := runEnvironment(command.Flags().Changed, said)
			if err != nil {
				return cli.Usage(err)
			}
			library, err := cli.FindLibrary()
			if err != nil {
				return cli.Usage(err)
			}
			library, err = cli.Preload(library)
			if err != nil {
				return cli.Usage(err)
			}
			program, err := exec.LookPath(args[0])
			if err != nil && !errors.Is(err, exec.ErrDot) {
				if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
					return cli.Exit{Status: 127, Err: fmt.Errorf("run: there is no program %q; a name without a slash is looked for on the PATH", args[0])}
				}
				return cli.Exit{Status: 126, Err: fmt.Errorf("run %s: %w", args[0], cli.Cause(err))}
			}
			warn(command.ErrOrStderr(), env, program)
			env = cli.SetEnv(env, "LD_PRELOAD", preload(os.Getenv("LD_PRELOAD"), library))
			return cli.Exit{Status: 126, Err: fmt.Errorf("run %s: %w", program, replaceBy(program, args, env))}
		},
	}
	flags := command.Flags()
	flags.SetInterspersed(false) // the program's flags are its own
	flags.StringVarP(&said.priority, "priority", "p", "", "lc, be, off, or a level from 0 (lc) to 7 (be); default $GPREEMPT_PRIORITY")
	flags.StringVarP(&said.config, "config", "c", "", "configuration file; default as in default.toml")
	flags.StringVar(&said.log, "log", "", "level[:/path/file] of the library's log; default $GPREEMPT_LOG")
	flags.StringVar(&said.objective, "objective", "", "how slow an lc program may be: slowdown=1.5, or step=20ms, with first=200ms, p=99 and range=NAME (an NVTX range that ends with each step) if wanted; default $GPREEMPT_OBJECTIVE")
	flags.StringVar(&said.memoryLimit, "memory-limit", "", "the most GPU memory of each process: 10GB, 10240MB, 40% or none; default $GPREEMPT_MEMORY_LIMIT")
	for name, values := range map[string][]string{
		"priority": {"lc", "be", "off"},
		"log":      configs.LogLevels,
	} {
		if err := command.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)); err != nil {
			panic(err) // the flag was made above
		}
	}
	return command
}

// replaceBy runs a program in place of this one, as execvp would. It returns only to say why it could not.
func replaceBy(program string, args, env []string) error {
	runtime.LockOSThread() // the mask of signals is the thread's
	giveBackSignals()
	err := unix.Exec(program, args, env)
	if errors.Is(err, unix.ENOEXEC) { // a script that does not name its interpreter
		const shell = "/bin/sh"
		err = unix.Exec(shell, append([]string{shell, program}, args[1:]...), env)
	}
	return err
}

// saying is what flags say to the library.
type saying struct{ priority, config, log, objective, memoryLimit string }

// runEnvironment checks what the library will read, which could only complain from inside the program,
// and returns the environment that says it.
func runEnvironment(given func(flag string) bool, said saying) ([]string, error) {
	env := os.Environ()
	if given("priority") {
		if _, err := configs.ParsePriority(said.priority); err != nil || said.priority == "" {
			return nil, fmt.Errorf("--priority %q: must be lc, be, off, or a level from 0 (highest, lc) to 7 (lowest, be)", said.priority)
		}
		env = cli.SetEnv(env, "GPREEMPT_PRIORITY", said.priority)
	} else if _, err := configs.ParsePriority(os.Getenv("GPREEMPT_PRIORITY")); err != nil {
		return nil, err
	}
	if given("log") {
		if err := configs.ApplyLogEnv(&configs.Config{}, said.log); err != nil || said.log == "" {
			return nil, fmt.Errorf("--log %q: must be trace, debug, info, warn, error or off, or one of these with :/path/file", said.log)
		}
		if err := os.Setenv("GPREEMPT_LOG", said.log); err != nil {
			return nil, fmt.Errorf("--log: %w", err)
		}
		env = cli.SetEnv(env, "GPREEMPT_LOG", said.log)
	}
	if given("objective") {
		if said.objective == "" {
			said.objective = "none"
		}
		if _, err := configs.ParseOwnObjective(configs.Objective{}, said.objective); err != nil {
			return nil, fmt.Errorf("--objective: %w", err)
		}
		env = cli.SetEnv(env, "GPREEMPT_OBJECTIVE", said.objective)
	} else if err := configs.ApplyObjectiveEnv(&configs.Config{}, os.Getenv("GPREEMPT_OBJECTIVE")); err != nil {
		return nil, err
	}
	if given("memory-limit") {
		if _, err := configs.ParseOwnMemoryLimit(said.memoryLimit); err != nil {
			return nil, fmt.Errorf("--memory-limit: %w", err)
		}
		env = cli.SetEnv(env, "GPREEMPT_MEMORY_LIMIT", said.memoryLimit)
	} else if err := configs.ApplyMemoryLimitEnv(&configs.Config{}, os.Getenv("GPREEMPT_MEMORY_LIMIT")); err != nil {
		return nil, err
	}
	if given("config") && said.config == "" {
		return nil, errors.New(`--config "": must be the path of a TOML file`)
	}
	_, path, _, err := loadConfig(said.config)
	if err != nil || path == "" {
		return env, err
	}
	// The one that was checked, though the program may change its directory before it uses CUDA.
	if path, err = filepath.Abs(path); err != nil {
		return nil, fmt.Errorf("find the configuration: %w", err)
	}
	return cli.SetEnv(env, "GPREEMPT_CONFIG", path), nil
}

// warn says why the library may not work in the program, which runs all the same.
func warn(out io.Writer, env []string, program string) {
	if priority, _ := lookupEnv(env, "GPREEMPT_PRIORITY"); priority == "" {
		fmt.Fprintln(out, "gpreempt: warning: neither --priority nor GPREEMPT_PRIORITY is set: nothing is preempted")
	}
	if reason := notPreloadable(program); reason != "" {
		fmt.Fprintf(out, "gpreempt: warning: %s %s: the library will not be loaded into it\n", program, reason)
	}
}

func lookupEnv(env []string, key string) (string, bool) {
	for _, entry := range env {
		if value, ok := strings.CutPrefix(entry, key+"="); ok {
			return value, true
		}
	}
	return "", false
}

// notPreloadable says why the loader would ignore LD_PRELOAD for a program, or "". Scripts are fine.
func notPreloadable(program string) string {
	info, err := os.Stat(program)
	if err != nil {
		return ""
	}
	if info.Mode()&(os.ModeSetuid|os.ModeSetgid) != 0 {
		return "is setuid or setgid"
	}
	if n, err := unix.Getxattr(program, "security.capability", nil); err == nil && n > 0 {
		return "has file capabilities"
	}
	file, err := elf.Open(program)
	if err != nil {
		return ""
	}
	defer file.Close()
	if machine := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[runtime.GOARCH]; file.Class != elf.ELFCLASS64 || file.Machine != machine {
		return fmt.Sprintf("is for another architecture (%s, %s)", file.Machine, file.Class)
	}
	for _, segment := range file.Progs {
		if segment.Type == elf.PT_INTERP {
			return ""
		}
	}
	return "is statically linked"
}
