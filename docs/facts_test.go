package docs

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/gpreempt/gpreempt/configs"
)

// The table of doctor's checks has all of them.
func TestChecksOfDoctorAreDescribed(t *testing.T) {
	t.Parallel()
	_, table, _ := strings.Cut(text(t, "docs/troubleshooting.md"), "## Findings of `gpreempt doctor`")
	table, _, _ = strings.Cut(table, "\n## ")
	files, err := filepath.Glob(filepath.Join(root, "cmd", "gpreempt", "doctor*.go"))
	if err != nil || len(files) < 5 {
		t.Fatal(files, err)
	}
	found := 0
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, check := range regexp.MustCompile(`d\.say\("(\w+)"`).FindAllStringSubmatch(string(source), -1) {
			found++
			if !regexp.MustCompile(`(?m)^\| (\w+, )*` + check[1] + `(, \w+)* \| `).MatchString(table) {
				t.Errorf("troubleshooting.md does not describe the check %s", check[1])
			}
		}
	}
	if found < 20 {
		t.Errorf("%d checks: the expression is wrong", found)
	}
}

// Facts that documents repeat are those of the code: keys of the configuration, values that are called defaults, and versions.
func TestFactsAreThoseOfTheCode(t *testing.T) {
	t.Parallel()
	values, err := configs.Values("")
	if err != nil {
		t.Fatal(err)
	}
	defaults, sections := map[string]string{}, map[string]bool{}
	for _, v := range values {
		defaults[v.Key] = v.Value
		if section, _, is := strings.Cut(v.Key, "."); is {
			sections[section] = true
		}
	}
	key := regexp.MustCompile("`([a-z]+)\\.([a-z][a-z_]*)(?: = ([^`]+))?`(?:,? (?:\\(default|by default|the default is) ([0-9.]+))?")
	named := 0
	for name, text := range documents(t) {
		if name == "CHANGELOG.md" { // which names what was
			continue
		}
		for _, found := range key.FindAllStringSubmatch(text, -1) {
			if !sections[found[1]] || found[2] == "c" || found[2] == "h" || found[2] == "go" {
				continue
			}
			named++
			full := found[1] + "." + found[2]
			if _, there := defaults[full]; !there {
				t.Errorf("%s names %s, which is no key of default.toml", name, full)
			} else if found[4] != "" && strings.TrimRight(found[4], ".") != defaults[full] {
				t.Errorf("%s says that the default of %s is %s, which is %s", name, full, found[4], defaults[full])
			}
		}
	}
	if named < 40 {
		t.Errorf("only %d keys are named: the expression is wrong", named)
	}
	newest := regexp.MustCompile(`GP_NEWEST_DRIVER (\d+)`).FindStringSubmatch(text(t, "preempt/driver/hooks.h"))
	if newest == nil {
		t.Fatal("hooks.h does not say which driver is the newest that is known")
	}
	cuda := fmt.Sprintf("%s.%s", newest[1][:2], strings.TrimLeft(newest[1][2:4], "0"))
	for _, name := range []string{"docs/where.md", "docs/limits.md", "docs/troubleshooting.md"} {
		if !regexp.MustCompile(`later than ` + regexp.QuoteMeta(cuda) + `\b`).MatchString(text(t, name)) {
			t.Errorf("%s does not say that CUDA %s is the newest that is known", name, cuda)
		}
	}
	answers := fmt.Sprintf("answers (messages %s, pages %s)",
		regexp.MustCompile(`\bVersion = (\d+)`).FindStringSubmatch(text(t, "broker/wire/wire.go"))[1],
		regexp.MustCompile(`GP_SEGMENT_VERSION (\d+)u`).FindStringSubmatch(text(t, "preempt/segment/segment.h"))[1])
	if !strings.Contains(text(t, "docs/broker.md"), answers) {
		t.Errorf("docs/broker.md does not show that the broker %s", answers)
	}
	for name, text := range documents(t) {
		if name != "docs/glossary.md" && name != "docs/results.md" && strings.HasPrefix(name, "docs/") && regexp.MustCompile(`\b190 us\b`).MatchString(text) {
			t.Errorf("%s says how long a switch takes: docs/glossary.md does, link to it", name)
		}
	}
	gomod := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(text(t, "go.mod"))
	if gomod == nil || !strings.Contains(text(t, "README.md"), "Go "+gomod[1]) {
		t.Errorf("README.md does not name the Go of go.mod, %v", gomod)
	}
}
