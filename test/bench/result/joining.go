package result

import (
	"fmt"
	"slices"
	"strings"
)

// Figures of another build, GPU or driver are of another measurement. Results that differ in one of them are never joined, and
// what is measured does not go on from them.

// differs says where two heads may not be joined, naming the key; "" where they may.
func (h Head) differs(others Head) (key, ours, theirs string) {
	for _, one := range []struct{ key, ours, theirs string }{
		{"commit", h.Commit, others.Commit}, {"gpu", h.GPU, others.GPU}, {"driver", h.Driver, others.Driver},
	} {
		if one.ours != one.theirs {
			return one.key, one.ours, one.theirs
		}
	}
	return "", "", ""
}

// CheckJoin is an error where the results of a file cannot be joined with those of another.
func (h Head) CheckJoin(file string, others Head, otherFile string) error {
	if key, ours, theirs := h.differs(others); key != "" {
		return fmt.Errorf("read results: %s: %s is %q, and %q in %s: they are no parts of one measurement; read them apart, or measure one of them again",
			file, key, ours, theirs, otherFile)
	}
	return nil
}

// CheckGoOn is an error where what is measured now, whose head this is, cannot go on from the results at a path.
func (h Head) CheckGoOn(path string, there Head) error {
	if key, ours, theirs := h.differs(there); key != "" {
		return fmt.Errorf("%s: %s is %q, and %q now: name another folder with --out", path, key, theirs, ours)
	}
	return nil
}

// AddWords is a list of different words.
func AddWords(list, more string) string {
	words := strings.Split(list, listed)
	for _, word := range strings.Split(more, listed) {
		if !slices.Contains(words, word) {
			words = append(words, word)
		}
	}
	return strings.Join(words, listed)
}

const listed = "; "
