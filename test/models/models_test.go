// Package models runs Spin on the models of the library's state machines, and compares them with the code.
package models

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const (
	model = "../../preempt/blp/states.pml"
	table = "../../preempt/blp/states.c"
)

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// verify looks at every order of the model's steps. It returns what the verifier printed.
func verify(t *testing.T, defines ...string) string {
	t.Helper()
	if _, err := exec.LookPath("spin"); err != nil {
		t.Skip("there is no spin: install Debian's package of that name")
	}
	path, err := filepath.Abs(model)
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	run := func(name string, arguments ...string) string {
		command := exec.CommandContext(t.Context(), name, arguments...)
		command.Dir = folder
		text, err := command.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %v: %v\n%s", name, arguments, err, text)
		}
		return string(text)
	}
	run("spin", append(defines, "-a", path)...)
	optimise := "-O2"
	if len(defines) > 0 { // an error is found sooner than that compiles
		optimise = "-O0"
	}
	run("gcc", optimise, "-w", "-DSAFETY", "-o", "pan", "pan.c")
	return run("./pan", "-m100000", "-w24")
}

var (
	errorsFound = regexp.MustCompile(`errors: (\d+)`)
	unreached   = regexp.MustCompile(`state \d+, "(assert\(\(state==\d+\)\))"`) // of a transition of the domain
)

// takesLong leaves a test to CI, and to people who change the model or the states.
func takesLong(t *testing.T) {
	if os.Getenv("GPREEMPT_DEEP") == "" {
		t.Skip("Spin looks at every order of the model's threads, for 20 s of a processor: set GPREEMPT_DEEP")
	}
}

// In no order does a block run twice or never, or an operation overtake another one. Questions get right answers, no stop comes beside a
// call that waits in the driver, and no thread waits for ever. Each transition of the domain is made in some order.
func TestStates(t *testing.T) {
	t.Parallel()
	takesLong(t)
	said := verify(t)
	if found := errorsFound.FindStringSubmatch(said); found == nil || found[1] != "0" || strings.Contains(said, "search depth too small") {
		t.Fatal(said)
	}
	for _, step := range unreached.FindAllStringSubmatch(said, -1) {
		t.Errorf("never made: the transition behind %s", step[1])
	}
}

// The verifier finds each rule that is broken on purpose.
func TestBrokenRules(t *testing.T) {
	t.Parallel()
	takesLong(t)
	text := read(t, model)
	_, rules, _ := strings.Cut(text, "With one of these defined, a rule is broken on purpose, and Spin has to find an error: ")
	rules, _, found := strings.Cut(rules, ".")
	if !found {
		t.Fatal("the model does not name its rules")
	}
	for _, rule := range regexp.MustCompile(`[A-Z_]+`).FindAllString(rules, -1) {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			if !regexp.MustCompile(`(?m)^#.*\b` + rule + `\b`).MatchString(text) {
				t.Fatal("the model does not know it")
			}
			if said := verify(t, "-D"+rule); !strings.Contains(said, "errors: 1") {
				t.Error(said)
			}
		})
	}
}

// arrows are the transitions that a pattern finds, each once, sorted. With one group the other state is to.
func arrows(text string, pattern *regexp.Regexp, to string) (all []string) {
	for _, pair := range pattern.FindAllStringSubmatch(text, -1) {
		all = append(all, strings.Join(append(slices.Clone(pair[1:]), to)[:2], " "))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// arrowsOf are those of a table of states.c, without the states that the model leaves out.
func arrowsOf(t *testing.T, text, name string, leftOut ...string) (all []string) {
	t.Helper()
	_, text, _ = strings.Cut(text, "static const uint32_t "+name+"[")
	text, _, found := strings.Cut(text, "};")
	if !found {
		t.Fatalf("%s has no table %s", table, name)
	}
	for _, row := range regexp.MustCompile(`(?s)\[BLP_(\w+)\] = (.*?),\n`).FindAllStringSubmatch(text, -1) {
		for _, to := range regexp.MustCompile(`TO\(BLP_(\w+)\)`).FindAllStringSubmatch(row[2], -1) {
			if !slices.Contains(leftOut, row[1]) && !slices.Contains(leftOut, to[1]) {
				all = append(all, row[1]+" "+to[1])
			}
		}
	}
	slices.Sort(all)
	return all
}

// The model's transitions are those of the code.
func TestTransitions(t *testing.T) {
	t.Parallel()
	modelled, code := read(t, model), read(t, table)
	got := slices.Concat(arrows(modelled, regexp.MustCompile(`\b(?:become|closes|opens)\(([A-Z]+), ([A-Z]+)\)`), ""),
		arrows(modelled, regexp.MustCompile(`\bgiveUp\(([A-Z]+)\)`), "HELD"), arrows(modelled, regexp.MustCompile(`\bgoNarrow\(([A-Z]+)\)`), "NARROW"))
	slices.Sort(got)
	want := arrowsOf(t, code, "next", "ABSENT")
	if !slices.Equal(got, want) {
		t.Errorf("of a domain: %v, want %v", got, want)
	}
	got, want = arrows(modelled, regexp.MustCompile(`\bturn\(\w+, ([A-Z]+), ([A-Z]+)\)`), ""), arrowsOf(t, code, "next_stage", "UNGUARDED", "CUT_UNGUARDED")
	want = slices.DeleteFunc(want, func(arrow string) bool { return arrow == "QUEUED DONE" || arrow == "CUT DONE" }) // what is given up
	if !slices.Equal(got, want) {
		t.Errorf("of an operation: %v, want %v", got, want)
	}
}
