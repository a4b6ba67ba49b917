package main

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"
)

// parts of this test are shell scripts that print what go test -json and make print.
var scripts = map[string]string{
	"good": `printf '%s\n' '{"Action":"run","Package":"p","Test":"TestA"}'
		printf '%s\n' '{"Action":"attr","Package":"p","Test":"TestA","Key":"seed","Value":"7"}'
		printf '%s\n' '{"Action":"pass","Package":"p","Test":"TestA","Elapsed":2}'
		printf '%s\n' '{"Action":"pass","Package":"p","Elapsed":2}'`,
	"bad": `printf '%s\n' '{"Action":"output","Package":"q","Test":"TestB/sub","Output":"    b_test.go:1: it is wrong\n"}'
		printf '%s\n' '{"Action":"fail","Package":"q","Test":"TestB/sub","Elapsed":1}'
		printf '%s\n' '{"Action":"fail","Package":"q","Test":"TestB","Elapsed":1}'
		printf '%s\n' '{"Action":"fail","Package":"q","Elapsed":1}'; exit 1`,
	"skips": `printf '%s\n' '{"Action":"output","Package":"r","Test":"TestC","Output":"=== RUN   TestC\n"}'
		printf '%s\n' '{"Action":"output","Package":"r","Test":"TestC","Output":"    c_test.go:2: there is no root\n"}'
		printf '%s\n' '{"Action":"skip","Package":"r","Test":"TestC"}'
		printf '%s\n' '{"Action":"pass","Package":"r"}'`,
	"refuses": `printf '%s\n' 'gofmt would change: a.go'; exit 2`,
	"dies": `printf '%s\n' '{"Action":"output","Package":"s","Test":"TestD","Output":"panic: test timed out\n"}'
		exit 1`,
}

func run(t *testing.T, strict bool, names ...string) (said string, good bool) {
	t.Helper()
	var out bytes.Buffer
	s := &suite{out: &out, command: func(part string) *exec.Cmd { return exec.Command("sh", "-c", scripts[part]) }}
	good = s.summary(s.runAll(names, 2), strict)
	return out.String(), good
}

func TestPartsRunToTheirEnd(t *testing.T) {
	said, good := run(t, false, "refuses", "bad", "dies", "good")
	if good {
		t.Error("failures are none")
	}
	for _, want := range []string{
		"refuses: gofmt would change: a.go", "failed: refuses: exit status 2", "b_test.go:1: it is wrong", "failed: bad: TestB/sub of q", "panic: test timed out",
		"failed: dies: TestD of s", "good: ok", "slowest:    2 s TestA of p", "noted: good: TestA of p: seed 7\n",
	} {
		if !strings.Contains(said, want) {
			t.Errorf("%q is not in %s", want, said)
		}
	}
}

func TestSkipsAreNamed(t *testing.T) {
	for strict, want := range map[bool]string{false: "skips: ok", true: "FAILED"} {
		said, good := run(t, strict, "skips", "good")
		if good == strict || !strings.Contains(said, want) || !strings.Contains(said, "skipped: skips: TestC of r: c_test.go:2: there is no root\n") {
			t.Errorf("strict %v: %v %s", strict, good, said)
		}
	}
}
