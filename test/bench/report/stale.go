package report

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpreempt/gpreempt/test/bench/result"
)

// library is what the library is made of, as git names paths: tests and what they read change none of its figures.
var library = []string{"exports", "preempt", "hints", "patch", "kernels", "shim", "configs",
	":(exclude)*_test.go", ":(exclude)*_test.c", ":(exclude)*/testdata/*"}

// excuses is the file of commits that cannot change a figure: COMMIT FILES REASON in each line.
const excuses = "test/bench/results/unchanged.txt"

// Age says how a result file that a document shows stands to the library as it is.
type Age struct {
	File, Commit string
	Since        []string // hashes and subjects of commits since, which changed the library, newest first
	Excused      []string // and of those which cannot have changed this file's figures, with the reasons
	Unknown      string   // why nobody can tell
}

// Stale says whether the library may give other figures by now.
func (a Age) Stale() bool { return len(a.Since) > 0 || a.Unknown != "" }

var errHistory = errors.New("nobody can tell what has changed since the results were measured")

// Ages are those of all files that the documents of a clone show. Its history has to be whole.
func Ages(ctx context.Context, root string) ([]Age, error) {
	git := func(arguments ...string) (string, error) {
		out, err := exec.CommandContext(ctx, "git", append([]string{"-C", root}, arguments...)...).Output()
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			err = fmt.Errorf("git %s: %s", arguments[0], bytes.TrimSpace(exit.Stderr))
		}
		return strings.TrimSpace(string(out)), err
	}
	shallow, err := git("rev-parse", "--is-shallow-repository")
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errHistory, err)
	}
	if shallow != "false" {
		return nil, fmt.Errorf("%w: this clone is shallow; git fetch --unshallow", errHistory)
	}
	in := func(commit string) (string, error) { // its hash, if it is in the history of HEAD
		hash, err := git("rev-parse", "--verify", "--quiet", "--end-of-options", commit+"^{commit}")
		if err != nil {
			return "", err
		}
		_, err = git("merge-base", "--is-ancestor", hash, "HEAD")
		return hash, err
	}
	files, err := shown(root)
	if err != nil {
		return nil, err
	}
	excused, err := readExcuses(root, files, in)
	if err != nil {
		return nil, err
	}
	changes, err := git(append([]string{"status", "--porcelain", "--"}, library...)...)
	if err != nil {
		return nil, err
	}
	var ages []Age
	for _, file := range files {
		age := Age{File: file}
		if changes != "" {
			age.Since = append(age.Since, "changes that are not committed")
		}
		if age.Commit, err = commitOf(filepath.Join(root, "test/bench/results", file)); err != nil {
			return nil, err
		}
		var seen []string
		for described := range strings.SplitSeq(age.Commit, "; ") { // an evaluation may be of several
			if strings.HasSuffix(described, "-dirty") {
				age.Unknown = "measured at a tree with changes that were not committed"
			}
			hash, err := in(strings.TrimSuffix(described, "-dirty")) // git reads what it describes, also without the tag
			if err != nil {
				age.Unknown = "its commit is not in this history"
				continue
			}
			commits, err := git(append([]string{"log", "--format=%H %h %s", hash + "..HEAD", "--"}, library...)...)
			if err != nil {
				return nil, err
			}
			for line := range strings.Lines(commits) {
				commit, line, _ := strings.Cut(strings.TrimSpace(line), " ")
				if slices.Contains(seen, commit) {
					continue
				}
				seen = append(seen, commit)
				if reason := excused.of(commit, file); reason != "" {
					age.Excused = append(age.Excused, line+": "+reason)
				} else {
					age.Since = append(age.Since, line)
				}
			}
		}
		ages = append(ages, age)
	}
	return ages, nil
}

func commitOf(path string) (string, error) {
	text, err := os.ReadFile(path)
	var head result.Head
	if err == nil {
		err = json.Unmarshal(text, &head)
	}
	if err != nil {
		return "", fmt.Errorf("read results %s: %w", path, err)
	}
	return head.Commit, nil
}

// shown are the names of the result files that the documents show. One that is not measured yet is not there.
func shown(root string) (files []string, err error) {
	for _, document := range Documents {
		text, err := os.ReadFile(filepath.Join(root, document.Path))
		if err != nil {
			return nil, fmt.Errorf("look what is shown: %w", err)
		}
		for _, marked := range strings.Split(string(text), tableBegin)[1:] {
			for _, pattern := range patternsOf(marked) {
				paths, err := filepath.Glob(filepath.Join(root, "test/bench/results", pattern))
				if err != nil {
					return nil, fmt.Errorf("%s: results %s: %w", document.Path, pattern, err)
				}
				for _, path := range paths {
					files = append(files, filepath.Base(path))
				}
			}
		}
	}
	slices.Sort(files)
	return slices.Compact(files), nil
}

type excuse struct{ commit, files, reason string }

type excuseList []excuse

// readExcuses refuses what excuses nothing: a mistake there would hide a change.
func readExcuses(root string, files []string, in func(string) (string, error)) (list excuseList, err error) {
	text, err := os.ReadFile(filepath.Join(root, excuses))
	if err != nil {
		return nil, fmt.Errorf("read which commits change nothing: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		words := strings.Fields(line)
		if len(words) < 3 {
			return nil, fmt.Errorf("%s: %q is not: COMMIT FILES REASON", excuses, line)
		}
		hash, err := in(words[0])
		if err != nil {
			return nil, fmt.Errorf("%s: commit %s is not in this history", excuses, words[0])
		}
		if !slices.ContainsFunc(files, func(file string) bool { matches, err := path.Match(words[1], file); return matches && err == nil }) {
			return nil, fmt.Errorf("%s: no document shows %s", excuses, words[1])
		}
		list = append(list, excuse{hash, words[1], strings.Join(words[2:], " ")})
	}
	return list, nil
}

func (list excuseList) of(commit, file string) (reason string) {
	for _, e := range list {
		if matches, _ := path.Match(e.files, file); matches && e.commit == commit {
			return e.reason
		}
	}
	return ""
}

// PrintAges writes a line for each file, or all commits of those that are named.
func PrintAges(out io.Writer, ages []Age, named []string) error {
	if len(named) == 0 {
		t := result.NewTable(out, "file", "commit", "library commits since", "that change nothing there", "")
		for _, age := range ages {
			since, excused := fmt.Sprint(len(age.Since)), fmt.Sprint(len(age.Excused))
			if age.Unknown != "" {
				since, excused = "-", "-"
			}
			t.Row(age.File, age.Commit, since, excused, age.Unknown)
		}
		return t.End()
	}
	for _, name := range named {
		i := slices.IndexFunc(ages, func(age Age) bool { return age.File == filepath.Base(name) })
		if i < 0 {
			return fmt.Errorf("no document shows %s", name)
		}
		age := ages[i]
		about := fmt.Sprintf("%d library commits since", len(age.Since))
		if age.Unknown != "" {
			about = age.Unknown
		}
		fmt.Fprintf(out, "%s, of %s: %s\n", age.File, age.Commit, about)
		for _, commit := range age.Since {
			fmt.Fprintln(out, "  "+commit)
		}
		for _, commit := range age.Excused {
			fmt.Fprintln(out, "  changes nothing there: "+commit)
		}
	}
	return nil
}
