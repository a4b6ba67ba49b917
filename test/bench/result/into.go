package result

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// unspecific are words of a GPU's name that say nothing of which one it is.
var unspecific = []string{"nvidia", "tesla", "geforce", "quadro"}

// ShortGPU is a GPU's name as result files have it: up to the first word with a number. "NVIDIA H100 80GB HBM3" is h100.
func ShortGPU(name string) string {
	words := strings.FieldsFunc(strings.ToLower(name), func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') })
	words = slices.DeleteFunc(words, func(word string) bool { return slices.Contains(unspecific, word) })
	if i := slices.IndexFunc(words, func(word string) bool { return strings.ContainsAny(word, "0123456789") }); i >= 0 {
		words = words[:i+1]
	}
	return strings.Join(words, "-")
}

// FileName is the name of the committed file of such results.
func (h *Head) FileName() string { return ShortGPU(h.GPU) + "-" + h.Benchmark + ".json" }

// Into writes the results into a folder of results under their name, in the place of earlier ones. It refuses to where those have
// cases that these lack.
func (r *Report) Into(folder string) (path string, err error) {
	path = filepath.Join(folder, r.FileName())
	there, err := ReadReport(path)
	if errors.Is(err, os.ErrNotExist) {
		return path, r.Write(path)
	}
	if err != nil {
		return "", err
	}
	var lost []string
	for _, old := range there.Cases {
		if !slices.ContainsFunc(r.Cases, func(row Row) bool { return row.Case == old.Case && row.System == old.System }) {
			lost = append(lost, old.Case+" under "+old.System)
		}
	}
	if len(lost) > 0 {
		return "", fmt.Errorf("%s has what the new results lack, remove it if that is meant: %s", path, strings.Join(lost, ", "))
	}
	return path, r.Write(path)
}
