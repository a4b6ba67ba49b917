package dry

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Each line of a committed plan names a suite and cases that there are, and those of one GPU end within a call of 560 s.
func TestPlansCanBeRun(t *testing.T) {
	t.Chdir("../../..")
	plans, err := filepath.Glob("test/gpu/plans/*.plan")
	if err != nil || len(plans) == 0 {
		t.Fatalf("no plans, %v", err)
	}
	// runs matches options that say how to run a case, and not what is measured.
	runs := regexp.MustCompile(`--(minutes|out|json) \S+`)
	line := regexp.MustCompile(`^(\d+) +(\d+) +([\w-]+) +(?:CUDA_VISIBLE_DEVICES=[\d,]+ )?(build/\S+) (.*)$`)
	for _, plan := range plans {
		text, err := os.ReadFile(plan)
		if err != nil {
			t.Fatal(err)
		}
		seconds := map[string]int{}
		for text := range strings.Lines(string(text)) {
			if strings.HasPrefix(text, "#") {
				continue
			}
			field := line.FindStringSubmatch(strings.TrimSpace(text))
			if field == nil {
				t.Errorf("%s: %q is not: GPU SECONDS NAME COMMAND", plan, text)
				continue
			}
			limit, _ := strconv.Atoi(field[2])
			seconds[field[1]] += limit
			arguments := append(strings.Fields(runs.ReplaceAllString(field[5], "")), "--plan")
			if strings.HasSuffix(field[4], "-probe") {
				arguments = []string{"--list"}
			}
			if said, err := exec.Command(field[4], arguments...).CombinedOutput(); err != nil {
				t.Errorf("%s, %s: %v\n%s", plan, field[3], err, said)
			}
		}
		for gpu, all := range seconds {
			if all > 560 {
				t.Errorf("%s: %d s on GPU %s", plan, all, gpu)
			}
		}
	}
}

// The plans of the evaluation have each of its workloads once, with equal runs and systems, which one document takes.
// By the command's own estimate each plan ends within its time.
func TestPlansOfTheEvaluation(t *testing.T) {
	t.Chdir("../../..")
	want := []string{"A", "B", "C", "D", "E", "REAL"}
	slices.Sort(want)
	const runs = "--systems default,mps-priority,gpreempt,gpreempt-hints,gpreempt-mps --seconds 3.6 --requests 1000"
	plans, err := filepath.Glob("test/gpu/plans/eval*.plan")
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^0 +(\d+) +paper +build/gpreempt bench --suite paper --only (\S+) (.*) --minutes \$MINUTES --out \$PARTS --json \$JSON$`)
	estimate := regexp.MustCompile(`About (\d+):(\d\d) in all`)
	var workloads []string
	for _, plan := range plans {
		text, err := os.ReadFile(plan)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Count(string(text), "000 --minutes ") != strings.Count(string(text), "--suite ") {
			t.Errorf("%s: a line without thousands of requests", plan)
		}
		for _, field := range line.FindAllStringSubmatch(string(text), -1) {
			workloads = append(workloads, strings.Split(field[2], ",")...)
			if field[3] != runs {
				t.Errorf("%s: %s, want %s", plan, field[3], runs)
			}
			said, err := exec.Command("build/gpreempt", append([]string{"bench", "--suite", "paper", "--plan", "--only", field[2]}, strings.Fields(field[3])...)...).CombinedOutput()
			about := estimate.FindStringSubmatch(string(said))
			if err != nil || about == nil {
				t.Fatalf("%s: %v\n%s", plan, err, said)
			}
			minutes, _ := strconv.Atoi(about[1])
			seconds, _ := strconv.Atoi(about[2])
			limit, _ := strconv.Atoi(field[1])
			if minutes*60+seconds > limit-20 { // as session.sh tells the command
				t.Errorf("%s: %s in %d s", plan, about[0], limit)
			}
		}
	}
	if slices.Sort(workloads); !slices.Equal(workloads, want) {
		t.Errorf("workloads %v, want %v", workloads, want)
	}
}
