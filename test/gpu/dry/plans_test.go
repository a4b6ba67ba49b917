package dry

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
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
	// What says how it is run, and not what is measured.
	runs := regexp.MustCompile(`--busy|--(against|minutes|out|json) \S+`)
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
