// Package command tests gpreempt against what it does not contain: a broker, and CDI's own library.
package command

import (
	"os"
	"testing"

	"github.com/gpreempt/gpreempt/internal/clitest"
)

const source = "../../cmd/gpreempt"

// built holds the command, a library that can be preloaded and does nothing, and a CUDA driver.
var built string

func TestMain(m *testing.M) {
	os.Exit(clitest.Main(m, &built, source, func(folder string) error { return clitest.Driver(folder, source+"/testdata/libcuda.c") }))
}

type result struct {
	status         int
	stdout, stderr string
}

// gpreempt runs the command in an empty directory with a clean environment plus env.
func gpreempt(t *testing.T, env []string, arguments ...string) result {
	t.Helper()
	status, stdout, stderr := clitest.Run(t, built+"/gpreempt", env, arguments...)
	return result{status, stdout, stderr}
}

var write = clitest.Write
