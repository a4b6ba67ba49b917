// Command shim is libgpreempt.so: preloaded into a CUDA program, it makes the program yield the GPU to
// latency-critical peers, or get it from best-effort ones. Built with -buildmode=c-shared.
package main

// #cgo CFLAGS: -std=gnu11 -I${SRCDIR}/..
// #cgo !gpreempt_dist LDFLAGS: ${SRCDIR}/../build/exports.a -ldl -lpthread
// #include "shim/shim.h"
import "C"

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"unsafe"

	"github.com/rs/zerolog"

	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/hints/learner"
	"github.com/gpreempt/gpreempt/kernels"
	"github.com/gpreempt/gpreempt/preempt/agent"
	"github.com/gpreempt/gpreempt/preempt/program"
	"github.com/gpreempt/gpreempt/preempt/rewriter"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// version is set by the Makefile, to @(#)libgpreempt.so(VERSION): a form in which the library's file can be searched for it
// (internal/cli/library.go).
var version string

// main is never called in a c-shared library.
func main() {}

// gpreemptHelper is what the helper process does (helper.c): it serves the program of a number and a name, until that ends.
//
//export gpreemptHelper
func gpreemptHelper(pid C.int, name *C.char, page unsafe.Pointer) {
	runtime.GOMAXPROCS(min(runtime.GOMAXPROCS(0), mostProcessors))
	segment.Of = program.Of(int(pid), C.GoString(name), page)
	on := start()
	_ = segment.Of.Started(on)
	if on {
		rewriter.Release() // of what only the start needs
		select {}
	}
	flush()
	os.Exit(0)
}

const mostProcessors = 4 // the cores are the program's

// start says whether calls of the program are intercepted. The program waits. After a failure the log has one line, and the program runs on
// without preemption.
func start() bool {
	config, priority, passed, err := settings(os.Getenv)
	log := logger(config)
	if passed != nil {
		log.Warn().Msg(passed.Error())
	}
	if err != nil {
		log.Error().Msg(err.Error() + "; running without preemption")
		return false
	}
	if !priority.On {
		return false
	}
	level, on := agent.Level(config, priority.Level, log)
	if !on {
		return false
	}
	if err := agent.Start(config, level, agent.Images{Hold: kernels.Hold, Fill: kernels.Fill}, log); err != nil {
		log.Error().Err(err).Msg("running without preemption")
		return false
	}
	rewriter.Start(config, level, build(), log)
	sources := agent.HintSources(config, level)
	learner.NameRanges(ranges(config, level, sources))
	if config.Objective.StepRange != "" && bestEffort(level) {
		log.Info().Str("range", config.Objective.StepRange).
			Msg("this process begins as best effort: its steps do not end with the NVTX range of its objective, also where it is raised later")
	}
	if sources != 0 {
		learner.Start(learner.Options{Sources: sources, MaxCost: config.Hints.MaxCost, Log: requestLog(config, log)})
	}
	agent.Install(sources.Has(configs.HintSocket))
	log.Info().Str("priority", priority.String()).Str("library", release(version)).Msg("preemption is on")
	return true
}

// release is a version without the form in which the file can be searched for it. That form stands in no other string of the library.
func release(version string) string {
	return strings.TrimSuffix(version[strings.LastIndexByte(version, '(')+1:], ")")
}

func bestEffort(level int) bool { return level == configs.Levels-1 }

// ranges are the names of NVTX ranges that announce work, and that of a step's ("": none). Best effort has neither, since names do not
// change once they are known.
func ranges(config configs.Config, level int, sources configs.HintSources) (announcing []string, step string) {
	if sources.Has(configs.HintNVTX) {
		announcing = slices.DeleteFunc(config.Hints.NVTX[:], func(name string) bool { return name == "" })
	}
	if !bestEffort(level) {
		step = config.Objective.StepRange
	}
	return announcing, step
}

// build identifies this library by its version and the linker's hash of its contents, which a build may lack.
func build() string {
	var size C.size_t
	notes := C.gp_library_notes(&size)
	return version + C.GoStringN((*C.char)(notes), C.int(size))
}

// settings reads the environment and the configuration file. The config is usable for logging even
// when there is an error; passed is why a file is not obeyed.
func settings(getenv func(string) string) (config configs.Config, priority configs.Priority, passed, err error) {
	config, _, passed, err = configs.Read(getenv)
	logError := configs.ApplyLogEnv(&config, getenv("GPREEMPT_LOG"))
	objectiveError := configs.ApplyObjectiveEnv(&config, getenv("GPREEMPT_OBJECTIVE"))
	limitError := configs.ApplyMemoryLimitEnv(&config, getenv("GPREEMPT_MEMORY_LIMIT"))
	priority, priorityError := configs.ParsePriority(getenv("GPREEMPT_PRIORITY"))
	return config, priority, passed, cmp.Or(priorityError, err, logError, objectiveError, limitError)
}

const mostRequestLog = 64 << 20 // bytes

// requestLog returns the file that hints.log names; nil if it names none.
func requestLog(config configs.Config, log zerolog.Logger) io.Writer {
	if config.Hints.Log == "" {
		return nil
	}
	said := false
	file := &logFile{path: config.Hints.Log, limit: mostRequestLog, renamed: func(to string) {
		if !said { // by one goroutine
			said = true
			log.Warn().Str("file", to).Msg("hints.log has reached 64 MiB: it was renamed and a new one begun, as will be done each time")
		}
	}}
	if err := file.open(); err != nil {
		log.Warn().Err(err).Msg("no hints.log")
		return nil
	}
	return file
}

// console writes lines for people: the time of day, and levels by the names that settings have for them.
func console(to io.Writer) io.Writer {
	return zerolog.ConsoleWriter{Out: to, NoColor: true, TimeFormat: "15:04:05.000", FormatLevel: func(level any) string { return fmt.Sprint(level) }}
}

// logger writes to standard error or the configured file, never to standard output.
func logger(config configs.Config) zerolog.Logger {
	if config.Log.Level == "off" {
		return zerolog.Nop()
	}
	level, err := zerolog.ParseLevel(config.Log.Level)
	if err != nil {
		level = zerolog.WarnLevel
	}
	standard := &lines{to: stderr{}}
	logged = append(logged, standard)
	zerolog.TimeFieldFormat = configs.LogTimes
	out := console(standard)
	if config.Log.File != "" {
		file := &logFile{path: config.Log.File}
		if err := file.open(); err != nil {
			fmt.Fprintf(standard, "gpreempt: open log file: %v; logging to standard error\n", err)
		} else {
			out = &lines{to: file}
		}
	}
	zerolog.ErrorHandler = func(error) {} // the default one writes to os.Stderr
	return zerolog.New(out).Level(level).With().Timestamp().Str("app", "gpreempt").Int("pid", segment.Pid()).Logger()
}
