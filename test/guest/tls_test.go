package guest

import (
	"debug/elf"
	"testing"
)

// Static TLS comes out of the stack of every thread, and out of the little that glibc keeps for libraries that come late.
func TestStaticTLSIsSmall(t *testing.T) {
	const most = 64
	library, err := elf.Open(library(t))
	if err != nil {
		t.Fatal(err)
	}
	defer library.Close()
	found := false
	for _, segment := range library.Progs {
		if segment.Type == elf.PT_TLS {
			found = true
			if segment.Memsz > most {
				t.Errorf("the library has %d bytes of static TLS, at most %d are allowed: see preempt/process/thread.h", segment.Memsz, most)
			}
		}
	}
	if !found {
		t.Error("the library has no TLS segment, but Go's runtime needs one")
	}
}

// A thread with the least stack that POSIX allows uses half of it.
func TestSmallStacks(t *testing.T) {
	program := cc(t, "small_stack", "testdata/small_stack.c", "-lpthread")
	same(t, []string{program})
	for _, role := range []string{"lc", "be"} {
		same(t, []string{program}, "GPREEMPT_PRIORITY="+role)
	}
}

// Under an audit library glibc has less room for the static TLS of others.
func TestAuditLibraries(t *testing.T) {
	audit := "LD_AUDIT=" + cc(t, "audit.so", "testdata/audit.c", "-shared", "-fPIC")
	for _, command := range [][]string{{"/bin/true"}, {"/bin/sh", "-c", "echo started"}, {cc(t, "small_stack", "testdata/small_stack.c", "-lpthread")}} {
		same(t, command, audit)
		same(t, command, audit, "GPREEMPT_PRIORITY=lc")
	}
}

// A process may have used most of that room by the time that it opens the library itself.
func TestOpenedInAFullProcess(t *testing.T) {
	large := cc(t, "large.so", "testdata/large_tls.c", "-shared", "-fPIC")
	program := cc(t, "open_late", "testdata/open_late.c", "-ldl", "-lpthread")
	for _, role := range []string{"off", "lc"} {
		got := run(t, []string{program, large, library(t)}, "GPREEMPT_PRIORITY="+role)
		if got.status != "exit status 0" || got.stdout != "opened\n" {
			t.Errorf("role %s: %v", role, got)
		}
	}
}
