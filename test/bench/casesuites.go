package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/gpreempt/gpreempt/test/bench/result"
)

// caseSuites are the suites of cases.
var caseSuites = []caseSuite{
	{name: "foundation", about: "synthetic LC and BE processes, what the library costs, that results are the same", mode: "time-sliced",
		flags: []string{"requests"}, begin: configured(noHints)},
	{name: "quick", about: "two cases of foundation with fewer requests", mode: "time-sliced",
		flags: []string{"requests"}, begin: quick},
	{name: "unhinted", about: "one short kernel without a hint beside BE of short and long blocks, which are drained before the switch or not", mode: "time-sliced",
		flags: []string{"requests"}, begin: configured(noHints)},
	{name: "unprivileged", about: "quick, as a user without privileges; for root", mode: "time-sliced",
		flags: []string{"requests"}, begin: unprivileged},
	{name: usersSuite, about: "processes of several users and namespaces by a broker, beside hostile ones, and while it is killed; for root", mode: "time-sliced",
		flags: []string{"requests", "repeats", "seconds"}, begin: withBroker},
	{name: "hints", about: "the same requests under the library without and with hints", mode: "time-sliced",
		flags: []string{"requests"}, begin: configured("")},
	{name: "blp-mps", about: "LC beside BE under an MPS server: default, with priorities, and under the library", mode: "MPS",
		flags: []string{"requests"}, begin: clientsOfMPS},
	{name: "spatial", about: "LC beside BE under an MPS server, where requests leave SMs and where they leave none", mode: "MPS",
		flags: []string{"requests"}, begin: clientsOfMPS},
	{name: "blp-stream", about: "one process: a saturated stream is stopped for urgent work on another", mode: "block-level preemption",
		flags: []string{"requests"}, begin: configured(onlyBLP + noHints)},
	{name: PairedSuite, about: "the costs of two builds of the library, in turns", mode: "time-sliced",
		flags: []string{"requests", "repeats", "against"}, begin: contest},
	{name: "pytorch", about: "ResNet-50 inference beside three BE programs of PyTorch; what the library costs in eager mode", mode: "time-sliced",
		flags: []string{"requests", "python"}, begin: configured(noHints)},
	{name: "nvtx", about: "NVTX ranges of PyTorch as the source of hints", mode: "time-sliced",
		flags: []string{"requests", "python"}, begin: configured("")},
	{name: "http", about: "an HTTP service beside training, without hints and with those of its sockets", mode: "time-sliced",
		flags: []string{"requests", "python"}, begin: configured("")},
	{name: result.ServingSuite, about: "a model server beside training: alone, by default, under MPS, and with objectives", mode: "time-sliced",
		flags: []string{"requests", "python"}, begin: withModels},
	{name: "tvm", about: "networks that TVM compiled: beside programs of PyTorch, and those beside them", mode: "time-sliced",
		flags: []string{"requests", "python"}, begin: configured("")},
	{name: "identity", about: "programs print the same without the library and with it in each role", mode: "time-sliced",
		flags: []string{"python"}, jobs: 3, begin: configured("")},
	{name: programsSuite, about: "programs of public packages print the same in each role, with BLP, evicted and preempted", mode: "time-sliced",
		flags: []string{"python"}, jobs: 3, begin: configured("")},
	{name: "blp-fire", short: "fire", about: "programs compute the same, bit by bit, while they are preempted a thousand times", mode: "block-level preemption",
		flags: []string{"seconds", "python"}, jobs: 5, begin: fireAlone},
	{name: "blp-fire-mps", about: "the same with all processes clients of an MPS server", mode: "MPS",
		flags: []string{"seconds", "python"}, jobs: 5, begin: fireOverMPS},
	{name: "blp-fire-narrow", about: "the same, where requests leave a part of the SMs, another one all the time", mode: "MPS",
		flags: []string{"seconds", "python"}, jobs: 5, begin: fireNarrow},
	{name: "blp-cost", about: "what block-level preemption covers, and costs where nobody preempts", mode: "block-level preemption",
		flags: []string{"python"}, begin: onlyStops},
	{name: memorySuite, about: "programs that do not fit together: swap rates, turns, LC beside them, and what it costs where all fit", mode: "time-sliced",
		flags: []string{"seconds", "requests", "python"}, begin: withSwap},
	{name: memoryFireSuite, about: "programs compute the same, bit by bit, while their memory goes out hundreds of times", mode: "time-sliced",
		flags: []string{"seconds", "python"}, jobs: 4, begin: memoryFireAlone},
	{name: memoryFireMPSSuite, about: "the same with all processes clients of an MPS server", mode: "MPS",
		flags: []string{"seconds", "python"}, jobs: 4, begin: memoryFireOverMPS},
	{name: "spatial-pytorch", about: "PyTorch under MPS: LC requests of three models by the clock, and at 50 and 90 % load, beside BE programs", mode: "MPS",
		flags: []string{"requests", "seconds", "python"}, begin: torchClientsOfMPS},
	{name: "blp-mps-pytorch", about: "PyTorch under MPS: LC requests beside BE programs", mode: "MPS",
		flags: []string{"requests", "seconds", "python"}, begin: torchClientsOfMPS},
}

// configured gives the workers a configuration.
func configured(section string) func(context.Context, *session) (func(), error) {
	return func(_ context.Context, s *session) (func(), error) { return s.configure(section) }
}

const quickRequests = 200

func quick(_ context.Context, s *session) (end func(), err error) {
	if s.options.Requests == 0 {
		s.options.Requests = quickRequests
	}
	return s.configure(noHints)
}

const nobody = 65534 // the user and the group

// unprivileged runs the workers as a user without privileges, with copies of what they need.
func unprivileged(ctx context.Context, s *session) (end func(), err error) {
	if os.Getuid() != 0 {
		return nil, errors.New("only root can run workers as another user; as any other, suite quick measures the same")
	}
	s.credential = &syscall.Credential{Uid: nobody, Gid: nobody}
	for _, path := range []*string{&s.executable, &s.library} {
		to := filepath.Join(s.files, filepath.Base(*path))
		if err := copyProgram(*path, to); err != nil {
			return nil, err
		}
		*path = to
	}
	err = errors.Join(os.Chmod(s.folder, 0o755), os.Chmod(s.files, 0o755), os.Chown(s.segments, nobody, nobody))
	if err != nil {
		return nil, fmt.Errorf("let another user read the temporary folders: %w", err)
	}
	return quick(ctx, s)
}

func clientsOfMPS(ctx context.Context, s *session) (end func(), err error) {
	quit, err := s.underMPS(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := s.configure(noHints); err != nil {
		quit()
		return nil, err
	}
	return quit, nil
}

// Suites are all there are.
func Suites() []Suite {
	var all []Suite
	for _, c := range caseSuites {
		all = append(all, c.suite())
	}
	all = append(all, Suite{Name: result.StallsSuite, About: "tens of thousands of requests, and what the few that take much longer wait for",
		flags: []string{"seconds", "requests", "systems", "python"}, list: listStallCases, plan: planStalls,
		measure: func(ctx context.Context, options Options) (Result, error) {
			return asResult(measureStalls(ctx, options))
		}})
	for _, name := range []string{"paper", "full", "smoke"} {
		all = append(all, Suite{Name: name, About: evaluationAbout[name],
			flags: []string{"seconds", "repeats", "requests", "systems", "rivals", "part", "python"}, list: listWorkloads, plan: planEvaluation,
			measure: func(ctx context.Context, options Options) (Result, error) { return asResult(evaluate(ctx, options)) }})
	}
	return all
}

// FindSuite finds a suite by its name.
func FindSuite(name string) (Suite, error) {
	var names []string
	for _, s := range Suites() {
		if s.Name == name || s.short != "" && s.short == name {
			return s, nil
		}
		names = append(names, s.Name)
	}
	return Suite{}, fmt.Errorf("no suite %q; there are %s", name, strings.Join(names, ", "))
}

// ReadParts is what the partial results of folders give, a report for each suite. Where several have the same case, the last one counts.
func ReadParts(folders ...string) (reports []*result.Report, err error) {
	stalls, err := readStalls(folders...)
	if err != nil && !errors.Is(err, errNoParts) {
		return nil, err
	}
	if stalls != nil {
		reports = append(reports, stalls)
	}
	for _, c := range caseSuites {
		parts, err := c.readParts(folders...)
		if err != nil {
			return nil, err
		}
		report, err := c.join(parts)
		if err != nil {
			return nil, err
		}
		if report != nil {
			reports = append(reports, report)
		}
	}
	if reports == nil {
		return nil, fmt.Errorf("%s: %w", strings.Join(folders, ", "), errNoParts)
	}
	return reports, nil
}
