package report

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// clone is a repository with a library, documents and results.
type clone struct {
	t    *testing.T
	root string
}

func newClone(t *testing.T) *clone {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip(err)
	}
	c := &clone{t, t.TempDir()}
	c.git("init", "--quiet", "--initial-branch=main")
	for _, document := range Documents {
		c.write(document.Path, "")
	}
	c.write(excuses, "# none\n")
	return c
}

func (c *clone) git(arguments ...string) string {
	c.t.Helper()
	command := exec.Command("git", append([]string{"-C", c.root, "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"}, arguments...)...)
	out, err := command.CombinedOutput()
	if err != nil {
		c.t.Fatalf("git %q: %v\n%s", arguments, err, out)
	}
	return strings.TrimSpace(string(out))
}

func (c *clone) write(path, text string) {
	c.t.Helper()
	path = filepath.Join(c.root, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		c.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		c.t.Fatal(err)
	}
}

// commit changes files, and gives the commit's short hash.
func (c *clone) commit(subject string, paths ...string) string {
	c.t.Helper()
	for _, path := range paths {
		c.write(path, subject)
	}
	c.git("add", "--all")
	c.git("commit", "--quiet", "--allow-empty", "-m", subject)
	return c.git("rev-parse", "--short", "HEAD")
}

// measured adds a result file, which a document shows.
func (c *clone) measured(file, commit string) {
	c.write("test/bench/results/"+file, fmt.Sprintf(`{"schema": 1, "commit": %q}`, commit))
	c.shows(file)
}

// shows has a document show a file, or all of a pattern.
func (c *clone) shows(file string) {
	text, err := os.ReadFile(filepath.Join(c.root, "README.md"))
	if err != nil {
		c.t.Fatal(err)
	}
	c.write("README.md", string(text)+tableBegin+file+" summary -->\n"+tableEnd+"\n")
}

// ages are those of all files, as: commits since, excused, and why nobody can tell.
func (c *clone) ages() map[string]string {
	c.t.Helper()
	all, err := Ages(c.t.Context(), c.root)
	if err != nil {
		c.t.Fatal(err)
	}
	ages := map[string]string{}
	for _, age := range all {
		ages[age.File] = fmt.Sprintf("%d %d %s", len(age.Since), len(age.Excused), age.Unknown)
	}
	return ages
}

func (c *clone) want(ages map[string]string) {
	c.t.Helper()
	if is := c.ages(); fmt.Sprint(is) != fmt.Sprint(ages) {
		c.t.Errorf("%v, want %v", is, ages)
	}
}

func TestAgesOfResults(t *testing.T) {
	c := newClone(t)
	first := c.commit("all", "preempt/x.c", "patch/y.go", "docs/z.md")
	second := c.commit("preempt: more", "preempt/x.c")
	c.commit("tests only", "preempt/x_test.c", "patch/y_test.go", "patch/testdata/z", "docs/z.md")
	third := c.commit("patch: more", "patch/y.go")
	c.git("checkout", "--quiet", "--detach", first)
	elsewhere := c.commit("hints: elsewhere", "hints/h.c")
	c.git("checkout", "--quiet", "main")
	for file, commit := range map[string]string{
		"h200-first.json": first, "h200-second.json": "v0.1.0-12-g" + second, "h200-third.json": third, "h200-two.json": second + "; " + first,
		"h200-lost.json": "v0.1.0-9-gdeadbeef", "h200-elsewhere.json": elsewhere, "h200-dirty.json": third + "-dirty",
	} {
		c.measured(file, commit)
	}
	c.shows("*-of-all.json")
	c.shows("h100-one.json,h100-other.json")
	c.write("test/bench/results/h100-one.json", fmt.Sprintf(`{"schema": 1, "commit": %q}`, second))
	c.write("test/bench/results/h100-other.json", fmt.Sprintf(`{"schema": 1, "commit": %q}`, third))
	c.write("test/bench/results/h100-of-all.json", fmt.Sprintf(`{"schema": 1, "commit": %q}`, first))
	c.write("test/bench/results/h200-hidden.json", `{"schema": 1, "commit": "x"}`)
	const gone, dirty = "its commit is not in this history", "measured at a tree with changes that were not committed"
	want := map[string]string{"h100-of-all.json": "2 0 ", "h100-one.json": "1 0 ", "h100-other.json": "0 0 ", "h200-first.json": "2 0 ", "h200-second.json": "1 0 ", "h200-third.json": "0 0 ", "h200-two.json": "2 0 ",
		"h200-lost.json": "0 0 " + gone, "h200-elsewhere.json": "0 0 " + gone, "h200-dirty.json": "0 0 " + dirty}
	c.want(want)

	c.write(excuses, "# those\n"+third+" h200-[fs]*.json is not used there\n")
	want["h200-first.json"], want["h200-second.json"] = "1 1 ", "0 1 "
	c.want(want)

	var out bytes.Buffer
	ages, err := Ages(t.Context(), c.root)
	if err != nil || PrintAges(&out, ages, []string{"test/bench/results/h200-first.json"}) != nil ||
		!strings.Contains(out.String(), "1 library commits since\n  "+second+" preempt: more\n  changes nothing there: "+third+" patch: more: is not used there\n") {
		t.Errorf("%v\n%s", err, &out)
	}
	if err := PrintAges(&out, ages, []string{"h200-hidden.json"}); err == nil {
		t.Error("a file that no document shows")
	}
	out.Reset()
	if err := PrintAges(&out, ages, nil); err != nil || strings.Count(out.String(), "\n") != 1+len(want) || !strings.Contains(out.String(), gone) {
		t.Errorf("%v\n%s", err, &out)
	}

	c.write("preempt/x.c", "not committed")
	if is := c.ages(); is["h200-third.json"] != "1 0 " || is["h200-first.json"] != "2 1 " {
		t.Errorf("changes that are not committed: %v", is)
	}
}

// An excuse that excuses nothing is a mistake.
func TestExcusesAreOfSomething(t *testing.T) {
	c := newClone(t)
	first := c.commit("all", "preempt/x.c")
	c.measured("h200-first.json", first)
	for line, want := range map[string]string{
		"deadbeef * gone":                "commit deadbeef is not in this history",
		first + " h100-*.json other GPU": "no document shows h100-*.json",
		first + " [ a pattern":           "no document shows [",
		first + " *":                     "is not: COMMIT FILES REASON",
	} {
		c.write(excuses, line+"\n")
		if _, err := Ages(t.Context(), c.root); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", line, err, want)
		}
	}
}

// The committed excuses are of commits and files that there are.
func TestCommittedExcuses(t *testing.T) {
	_, err := Ages(t.Context(), root)
	if errors.Is(err, errHistory) {
		t.Skip(err)
	}
	if err != nil {
		t.Error(err)
	}
}

// Where the history is missing nothing is current.
func TestAgesNeedAHistory(t *testing.T) {
	c := newClone(t)
	c.measured("h200-first.json", c.commit("all", "preempt/x.c"))
	c.commit("more", "preempt/x.c")
	shallow := filepath.Join(t.TempDir(), "clone")
	c.git("clone", "--quiet", "--depth=1", "file://"+c.root, shallow)
	if ages, err := Ages(t.Context(), shallow); err == nil || !strings.Contains(err.Error(), "this clone is shallow") {
		t.Errorf("%v, %v", ages, err)
	}
	if err := os.RemoveAll(filepath.Join(c.root, ".git")); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GIT_CEILING_DIRECTORIES", filepath.Dir(c.root))
	if ages, err := Ages(t.Context(), c.root); err == nil || !errors.Is(err, errHistory) {
		t.Errorf("%v, %v", ages, err)
	}
}
