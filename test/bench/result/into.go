package result

import (
	"encoding/json"
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
	return into(folder, &r.Head, r.Write, r.Cases, func(row Row) caseUnder { return caseUnder{row.Case, row.System} })
}

// Into is like that of Report.
func (e *Evaluation) Into(folder string) (path string, err error) {
	return into(folder, &e.Head, e.Write, e.Cases, func(c EvaluationCase) caseUnder { return caseUnder{c.Case, c.System} })
}

func into[C any](folder string, head *Head, write func(path string) error, cases []C, name func(C) caseUnder) (path string, err error) {
	path = filepath.Join(folder, head.FileName())
	var here []caseUnder
	for _, c := range cases {
		here = append(here, name(c))
	}
	if err := hasAllOf(path, here); err != nil {
		return "", err
	}
	return path, write(path)
}

type caseUnder struct {
	Case   string `json:"case"`
	System string `json:"system"`
}

func hasAllOf(path string, here []caseUnder) error {
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read results: %w", err)
	}
	var there struct {
		Cases []caseUnder `json:"cases"`
	}
	if err := json.Unmarshal(text, &there); err != nil {
		return fmt.Errorf("read results %s: %w", path, err)
	}
	var lost []string
	for _, c := range there.Cases {
		if !slices.Contains(here, c) {
			lost = append(lost, c.Case+" under "+c.System)
		}
	}
	if len(lost) > 0 {
		return fmt.Errorf("%s has what the new results lack, remove it if that is meant: %s", path, strings.Join(lost, ", "))
	}
	return nil
}
