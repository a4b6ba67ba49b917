package docs

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The table of driver releases in limits.md says that what was tried was tried with the release of the result files: those of other
// releases have to be named there.
func TestResultsAreOfDriversInTheTable(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("limits.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(text), "### By driver release")
	table, _, ends := strings.Cut(table, "The consequences:")
	files, err := filepath.Glob("../test/bench/results/*.json")
	if err != nil || !found || !ends || len(files) == 0 {
		t.Fatalf("table %v, %v, %d files, %v", found, ends, len(files), err)
	}
	rows := regexp.MustCompile(`(?m)^\| [^|]* \| ([^|]*) \|`).FindAllStringSubmatch(table, -1)
	for _, file := range files {
		var head struct{ GPU, Driver string }
		data, err := os.ReadFile(file)
		if err == nil {
			err = json.Unmarshal(data, &head)
		}
		gpu, _, _ := strings.Cut(filepath.Base(file), "-")
		if err != nil || head.Driver == "" || !strings.Contains(strings.ToLower(head.GPU), gpu) {
			t.Errorf("%s: of driver %q, GPU %q: %v", file, head.Driver, head.GPU, err)
			continue
		}
		named := false
		for _, row := range rows {
			named = named || strings.Contains(row[1], head.Driver) && strings.Contains(row[1], "`"+gpu+"-*.json`")
		}
		if !named {
			t.Errorf("%s is of driver %s, which the column of what was tried does not name with `%s-*.json`", file, head.Driver, gpu)
		}
	}
}
