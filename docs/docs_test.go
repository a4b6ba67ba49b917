// Package docs holds the documents; this test sees that what they refer to is there.
package docs

import (
	"cmp"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const root = ".."

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	quoted  = regexp.MustCompile("`([a-z]+(?:/[A-Za-z0-9_.*-]+)+/?)`")
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	fence   = regexp.MustCompile("(?ms)^```.*?^```$")
	comment = regexp.MustCompile(`(?m)(?://|^\s*#|/\*| \*) .*$`)
	source  = regexp.MustCompile(`(?:^|[\s(])((?:[\w.-]+/)*[a-zA-Z]\w+\.(?:c|h|go|cu|py|sh|md))\b`)
)

// elsewhere are files that comments name and that are not the repository's: NVIDIA's, Linux's, Go's, made by make gpu-patch,
// or stand for any.
var elsewhere = regexp.MustCompile(`^(cuda\w*|cl\w+|ctrl\w+|nv\w*|fatbinary_section|cooperative_groups|elf|futex|unistd)\.h$|^(netpoll_epoll|sigtab_linux_generic|rlimit)\.go$|^run\.sh$|^NAME_test\.c$`)

// walk calls see with each file, by its path from the root: without build, hidden folders, and those that leaveOut matches.
func walk(t *testing.T, leaveOut *regexp.Regexp, see func(name string)) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		switch {
		case err != nil:
			return err
		case !entry.IsDir():
			see(name)
		case name == "build" || name != "." && strings.HasPrefix(entry.Name(), ".") || leaveOut != nil && leaveOut.MatchString(name):
			return filepath.SkipDir
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// text is a file, by its path from the root.
func text(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// documents are all Markdown files, by path from the root.
func documents(t *testing.T) map[string]string {
	all := map[string]string{}
	walk(t, regexp.MustCompile(`(^|/)testdata$`), func(name string) {
		if filepath.Ext(name) == ".md" {
			all[name] = fence.ReplaceAllString(text(t, name), "")
		}
	})
	if len(all) < 10 {
		t.Fatalf("%d documents", len(all))
	}
	return all
}

// anchor is what a heading is linked by.
func anchor(heading string) string {
	return strings.ReplaceAll(regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(strings.ToLower(heading), ""), " ", "-")
}

func TestLinksLeadSomewhere(t *testing.T) {
	all := documents(t)
	for name, text := range all {
		for _, found := range link.FindAllStringSubmatch(text, -1) {
			to, part, _ := strings.Cut(found[1], "#")
			if strings.Contains(to, "://") {
				continue
			}
			target := name
			if to != "" {
				target = filepath.Join(filepath.Dir(name), to)
			}
			if _, err := os.Stat(filepath.Join(root, target)); err != nil {
				t.Errorf("%s links to %s: %v", name, found[1], err)
				continue
			}
			there := part == ""
			for _, h := range heading.FindAllStringSubmatch(all[target], -1) {
				there = there || anchor(h[1]) == part
			}
			if !there {
				t.Errorf("%s links to %s, which has no such heading", name, found[1])
			}
		}
	}
}

// Files and folders of the repository that documents name in backquotes.
func TestNamedFilesAreThere(t *testing.T) {
	folders, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	top := map[string]bool{}
	for _, f := range folders {
		top[f.Name()] = f.IsDir() && f.Name() != "build"
	}
	named := 0
	for name, text := range documents(t) {
		for _, found := range quoted.FindAllStringSubmatch(text, -1) {
			first, _, _ := strings.Cut(found[1], "/")
			if !top[first] {
				continue
			}
			named++
			var there []string
			for _, from := range []string{root, filepath.Join(root, filepath.Dir(name))} {
				matches, err := filepath.Glob(filepath.Join(from, found[1]))
				if err != nil {
					t.Fatal(err)
				}
				there = append(there, matches...)
			}
			if len(there) == 0 {
				t.Errorf("%s names %s, which is not there", name, found[1])
			}
		}
	}
	if named == 0 {
		t.Error("no document names a file: the expression is wrong")
	}
}

// Files that comments name. A comment that outlived its file would send its reader astray.
func TestNamedSourcesAreThere(t *testing.T) {
	there, texts := map[string]bool{}, map[string]string{}
	walk(t, nil, func(name string) {
		there[filepath.Base(name)] = true
		switch filepath.Ext(name) {
		case ".c", ".h", ".go", ".cu", ".sh", ".py", ".toml":
			texts[name] = text(t, name)
		}
	})
	named := 0
	for name, text := range texts {
		for _, line := range comment.FindAllString(text, -1) {
			if strings.Contains(line, "#include") {
				continue
			}
			for _, found := range source.FindAllStringSubmatch(line, -1) {
				base := filepath.Base(found[1])
				if elsewhere.MatchString(base) {
					continue
				}
				named++
				if !there[base] || strings.Contains(found[1], "/") && !existsIn(found[1], ".", "preempt", filepath.Dir(name), filepath.Dir(filepath.Dir(name))) {
					t.Errorf("%s names %s, which is not there: %s", name, found[1], strings.TrimSpace(line))
				}
			}
		}
	}
	if named < 100 {
		t.Errorf("only %d files are named: the expression is wrong", named)
	}
}

func existsIn(path string, folders ...string) bool {
	for _, folder := range folders {
		if _, err := os.Stat(filepath.Join(root, folder, path)); err == nil {
			return true
		}
	}
	return false
}

var (
	logRow  = regexp.MustCompile("(?m)^\\| `([^`]+)` \\|")
	warning = regexp.MustCompile(`(?s)\.(?:Warn|Error|WithLevel)\([^)]*\).{0,200}?\.Msg\(\s*"([^"]+)"`)
	joined  = regexp.MustCompile(`"\s*\+?\s*\n\s*"`)
)

// The log lines of troubleshooting.md are said by the library, and all warnings and errors of the library are there.
func TestLogLinesAreExplained(t *testing.T) {
	_, lines, found := strings.Cut(text(t, "docs/troubleshooting.md"), "\n## Log lines\n")
	if !found {
		t.Fatal("troubleshooting.md has no log lines")
	}
	lines, _, _ = strings.Cut(lines, "\n## ")
	code := ""
	for _, folder := range []string{"shim", "preempt", "hints", "exports", "patch"} {
		err := filepath.WalkDir(filepath.Join(root, folder), func(path string, entry fs.DirEntry, err error) error {
			if extension := filepath.Ext(path); err == nil && (extension == ".go" || extension == ".c") && !strings.Contains(entry.Name(), "_test.") {
				text, readErr := os.ReadFile(path)
				code, err = code+joined.ReplaceAllString(string(text), ""), readErr
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	explained := logRow.FindAllStringSubmatch(lines, -1)
	for _, row := range explained {
		for part := range strings.SplitSeq(row[1], "...") {
			if part = strings.Trim(part, " ;:,"); part != "" && !strings.Contains(code, strings.TrimPrefix(part, "gpreempt: ")) {
				t.Errorf("troubleshooting.md explains %q, which nobody says", part)
			}
		}
	}
	said := warning.FindAllStringSubmatch(code, -1)
	if len(explained) < 20 || len(said) < 15 {
		t.Fatalf("%d log lines are explained and %d said: an expression is wrong", len(explained), len(said))
	}
	for _, s := range said {
		there := false
		for _, row := range explained {
			first, _, _ := strings.Cut(row[1], "...")
			there = there || strings.HasPrefix(s[1], strings.TrimRight(first, " ;:,")) && first != ""
		}
		if !there {
			t.Errorf("the library says %q, which troubleshooting.md does not explain", s[1])
		}
	}
}

var (
	house    = regexp.MustCompile(`(?m)^  (\w+)\["([\w/-]+): `)
	arrow    = regexp.MustCompile(`(?m)^  (\w+) --> ([\w &]+)$`)
	included = regexp.MustCompile(`(?m)^(?:#include|// #include) "(\w[\w/]*)/\w+\.\w+"`)
	imported = regexp.MustCompile(`(?m)^\t(?:_ )?"github\.com/gpreempt/gpreempt/([\w/-]+)"`)
)

// parts are folders that belong to a house without being one.
var parts = map[string]string{"kernels/guard": "kernels"}

// undrawn are folders whose code is in no diagram: what programs include, what writes generated files, what links the library, what makes packages, and what only
// tests use.
var undrawn = regexp.MustCompile(`^(api|charts|docs|exports/deferred|cluster/(command|dist|nri/nritest)|packaging|test/(e2e|exports|gpu|guest|models|simcuda|suite|units|bench/torch)|internal/clitest|.*/(testdata|generate))$`)

// The arrows of the diagrams are those of the code: nothing is included or imported against them, and each is there. Every
// folder with code is in a diagram.
func TestArrowsPointOneWay(t *testing.T) {
	diagrams := text(t, "docs/architecture.md")
	houses := map[string]string{} // folders of nodes
	for _, node := range house.FindAllStringSubmatch(diagrams, -1) {
		houses[node[1]] = node[2]
	}
	everyFolderIsDrawn(t, slices.Collect(maps.Values(houses)))
	drawn := map[string][]string{}
	for _, line := range arrow.FindAllStringSubmatch(diagrams, -1) {
		for to := range strings.SplitSeq(line[2], " & ") {
			if houses[line[1]] == "" || houses[to] == "" {
				t.Fatalf("architecture.md: %s --> %s: no houses", line[1], to)
			}
			drawn[houses[line[1]]] = append(drawn[houses[line[1]]], houses[to])
		}
	}
	var below func(folder string, path ...string) map[string]bool
	below = func(folder string, path ...string) map[string]bool {
		all := map[string]bool{}
		for _, to := range drawn[folder] {
			if slices.Contains(path, to) {
				t.Fatalf("architecture.md: a circle: %v, %s", path, to)
			}
			all[to] = true
			maps.Copy(all, below(to, append(path, to)...))
		}
		return all
	}
	for _, folder := range houses {
		used := map[string]bool{}
		files, err := os.ReadDir(filepath.Join(root, folder))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if file.IsDir() || strings.Contains(file.Name(), "_test.") {
				continue
			}
			code := text(t, filepath.Join(folder, file.Name()))
			for _, found := range slices.Concat(included.FindAllStringSubmatch(code, -1), imported.FindAllStringSubmatch(code, -1)) {
				to := cmp.Or(parts[found[1]], found[1])
				if slices.Contains(slices.Collect(maps.Values(houses)), to) && to != folder {
					used[to] = true
				}
			}
		}
		lower := below(folder, folder)
		for to := range used {
			if !lower[to] {
				t.Errorf("%s uses %s, against the arrows of architecture.md", folder, to)
			}
		}
		for _, to := range drawn[folder] {
			if !used[to] {
				t.Errorf("architecture.md draws %s --> %s, which the code does not have", folder, to)
			}
		}
	}
}

// everyFolderIsDrawn sees that no folder with code is passed over.
func everyFolderIsDrawn(t *testing.T, houses []string) {
	t.Helper()
	walk(t, undrawn, func(name string) {
		extension, folder := filepath.Ext(name), filepath.Dir(name)
		if (extension == ".go" || extension == ".c" || extension == ".h") && !slices.Contains(houses, cmp.Or(parts[folder], folder)) {
			t.Errorf("architecture.md draws no house for %s", name)
		}
	})
}

var (
	inCode     = regexp.MustCompile("(?m)`[^`\n]+`|^    .*$")
	makeTarget = regexp.MustCompile(`\bmake((?: [a-z][\w./-]*)+)`)
	subcommand = regexp.MustCompile(`(?:^|[ /` + "`" + `])gpreempt ([a-z]+)\b`)
)

// Commands that documents tell to run: targets of the Makefile and subcommands of gpreempt.
func TestNamedCommandsAreThere(t *testing.T) {
	targets, commands := "\n"+text(t, "Makefile"), text(t, "docs/man/gpreempt.1")
	named := 0
	for name, text := range documents(t) {
		for _, code := range inCode.FindAllString(text, -1) {
			code, _, _ = strings.Cut(code, " # ") // a comment of the shell
			for _, found := range makeTarget.FindAllStringSubmatch(code, -1) {
				for target := range strings.FieldsSeq(found[1]) {
					named++
					if !strings.Contains(targets, "\n"+target+":") {
						t.Errorf("%s says make %s, which is no target", name, target)
					}
				}
			}
			for _, found := range subcommand.FindAllStringSubmatch(code, -1) {
				named++
				if !strings.Contains(commands, "\n.SS gpreempt "+found[1]+"\n") {
					t.Errorf("%s says gpreempt %s, which is no command", name, found[1])
				}
			}
		}
	}
	if named < 40 {
		t.Errorf("only %d commands are named: an expression is wrong", named)
	}
}

var (
	calls  = regexp.MustCompile(`(?:^|[ /` + "`" + `])(gpreempt(?:-bench)?) (?:([a-z]+)\b)?([^|;>` + "`" + `\n]*)`)
	option = regexp.MustCompile(` --([a-z][a-z-]+)`)
)

// Options that documents and scripts give to gpreempt's commands. Words behind a lone -- are another program's.
func TestNamedOptionsAreThere(t *testing.T) {
	texts := map[string]string{}
	for name, text := range documents(t) {
		if name != "CHANGELOG.md" { // which names what was
			texts[name] = strings.Join(inCode.FindAllString(strings.ReplaceAll(text, "\\\n", " "), -1), "\n")
		}
	}
	walk(t, regexp.MustCompile(`^(build|docs)$`), func(name string) {
		if filepath.Ext(name) == ".sh" {
			texts[name] = strings.ReplaceAll(text(t, name), "\\\n", " ")
		}
	})
	named := 0
	for name, text := range texts {
		for _, call := range calls.FindAllStringSubmatch(text, -1) {
			page := "docs/man/gpreempt.1"
			switch {
			case call[1] == "gpreempt-bench", call[2] == "bench":
				page = "docs/man/gpreempt-bench.1"
			case call[2] == "": // gpreempt is the argument of another command
				continue
			}
			given, _, _ := strings.Cut(call[3], " -- ")
			for _, found := range option.FindAllStringSubmatch(given, -1) {
				named++
				if !strings.Contains(known(t, page), "--"+found[1]) {
					t.Errorf("%s gives --%s, which %s does not have", name, found[1], page)
				}
			}
		}
	}
	if named < 40 {
		t.Errorf("only %d options are named: an expression is wrong", named)
	}
}

// known is a manual page without troff's marks.
func known(t *testing.T, page string) string {
	t.Helper()
	return strings.ReplaceAll(text(t, page), `\-`, "-")
}
