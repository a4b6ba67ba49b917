package kernels

import (
	_ "embed"
	"strconv"
	"strings"
)

// Architecture is a row of architectures.txt.
type Architecture struct {
	SM       int // 90 for compute capability 9.0
	Measured bool
	GPUs     string
}

//go:embed architectures.txt
var architectures string

// Architectures lists the GPU architectures that there is code for, the oldest first.
func Architectures() (list []Architecture) {
	for line := range strings.Lines(architectures) {
		if columns := strings.Fields(line); len(columns) > 2 && columns[0] != "#" {
			sm, _ := strconv.Atoi(columns[0]) // a test reads the file
			list = append(list, Architecture{sm, columns[1] == "measured", strings.Join(columns[2:], " ")})
		}
	}
	return list
}
