package e2e

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// build is a sanitizer of the compiler, "thread" or "address". It watches the C parts of the library, the simulated driver and the programs
// of the tests. "": none does. make sanitize sets it.
type build string

var sanitizer = build(os.Getenv("GPREEMPT_SANITIZER"))

// unwatched names tests that do not run under a sanitizer, or how names of their subtests begin that do not, and says why.
var unwatched = []struct {
	why   string
	tests []string
}{
	{"programs that no compiler of ours makes look the driver up by libc's names, past the library (see the Makefile)", []string{
		"TestConfigurationIsNoFile", "TestForkBeforeCUDA", "TestForkInPython", "TestNoThreads", "TestNothingStartsWithoutCUDA",
		"TestProgramClosesEverything", "TestProgramsWithCUDA", "TestPythonModule", "TestPythonStreams", "TestRequestsOfNewConnections",
		"TestSignalsStayWithTheProgram", "TestSocketsAnnounceRequests", "TestSocketsThatNoWorkFollows",
	}},
	{"runtimes of CUDA do so, too", []string{"TestRuntimesLoadUnseen"}},
	{"programs that are to run without the library are linked with it here", []string{"TestStreamsOfOneProcess/no_library", "TestSwapDisguise"}},
	{"a sanitizer has threads, memory, files and handlers of signals of its own", []string{
		"TestArguments", "TestCrashIsTheProgramsOwn", "TestCyclesLeaveNothing", "TestEndedHelpersLeaveNothing", "TestFewThreads", "TestFileSizeLimit", "TestLittleMemory", "TestLoadOfTooLargeCode", "TestLoadsWithFewThreads", "TestMemoryRunsOut",
		"TestOrdinaryProgramsUnchanged", "TestProgramsWithoutCUDA", "TestThreadsOfAnIdleProgram", "TestThreadsRunOut", "TestValgrind",
	}},
	{"they are about the agent and the broker, which are Go: the race detector watches these in their own tests, in less time", []string{
		"TestBestEffortBesideOthers", "TestBroker", "TestBrokerDecidesLevels", "TestBrokerIsLate", "TestBrokerKilledAtRandom",
		"TestConfigErrors", "TestGroupByNumber", "TestJobsTakeTurnsTogether", "TestKilledPeers", "TestManyPeers", "TestMembersThatLie",
		"TestMemoryOfAUser", "TestOthersOnTheGPU", "TestPIDNamespaces", "TestPeerThatDiesAfterItsBroker", "TestRefusedByTheBroker",
		"TestRefusedByTheNextBroker", "TestRefusedIsBestEffort", "TestRefusedIsOff", "TestRootInOthersFolder", "TestSetTakesEffect",
		"TestShareOfAUser", "TestShares", "TestSquatter", "TestStoppedPeers", "TestTimeNamespaces", "TestUsersInNamespaces",
		"TestWhoLiesAboutWindowsLeavesAShare",
	}},
	{"kernels, requests and calls take their usual time there", []string{
		"TestLoads/unloaded-", "TestPartsOfSteps", "TestStreamsOfOneProcess/clusters",
	}},
	{"no C of the library runs, or next to none", []string{
		"TestDoctorOfBlocks", "TestDoctorOfFewMechanisms", "TestDoctorUnderTheLibrary", "TestFuzzersAreCounted", "TestInstall", "TestInstallRefuses",
	}},
}

// watch leaves out tests that a sanitizer is no use to, before flags are read.
func (b build) watch() error {
	if b == "" {
		return nil
	}
	var patterns []string
	for _, u := range unwatched {
		for _, name := range u.tests {
			test, subtests, some := strings.Cut(name, "/")
			if test = "^" + test + "$"; some {
				test += "/^" + subtests
			}
			patterns = append(patterns, test)
		}
	}
	return flag.Set("test.skip", strings.Join(patterns, "|"))
}

// built is a file of the build that is tested.
func built(name string) string {
	if sanitizer == "" || strings.HasPrefix(name, "gpreempt") { // commands are watched by none
		return filepath.Join(root, "build", name)
	}
	return filepath.Join(root, "build", "sanitize", string(sanitizer), name)
}

// compiler is the command that compiles a program. One that a sanitizer watches calls the library's lookups by names of
// their own (see the Makefile), for which it is linked with it.
func compiler(program string, arguments ...string) []string {
	command := append([]string{"gcc", "-O1", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-o", program}, arguments...)
	if sanitizer != "" {
		command = append(command, "-g", "-fsanitize="+string(sanitizer), "-Ddlsym=gp_dlsym", "-Ddlvsym=gp_dlvsym", "-Ddlopen=gp_dlopen",
			built("libgpreempt.so"), "-Wl,--unresolved-symbols=ignore-in-shared-libs")
	}
	return append(command, "-ldl", "-lpthread")
}

// runtime is the sanitizer's library, which has to come before all others.
func (b build) runtime() []string {
	if b == "" {
		return nil
	}
	path, err := exec.Command("gcc", "-print-file-name=lib"+string(b[0])+"san.so").Output()
	if err != nil {
		panic(err)
	}
	return []string{strings.TrimSpace(string(path))}
}

const report = "sanitizer-report"

// options make processes leave their reports in a folder. Threads and memory that are there as a process ends are no fault.
func (b build) options(dir string) []string {
	switch log := "log_path=" + filepath.Join(dir, report); b {
	case "thread":
		return []string{"TSAN_OPTIONS=exitcode=0:report_thread_leaks=0:" + log}
	case "address":
		return []string{"ASAN_OPTIONS=detect_leaks=0:" + log}
	}
	return nil
}

// reports fails the test for each report in the folder.
func (b build) reports(t *testing.T, dir string) {
	files, err := filepath.Glob(filepath.Join(dir, report+".*"))
	if err != nil {
		t.Error(err)
	}
	for _, file := range files {
		t.Errorf("%s", read(t, file))
	}
}

// A name that is no test's any more leaves nothing out.
func TestUnwatchedAreTests(t *testing.T) {
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, file := range files {
		all.WriteString(read(t, file))
	}
	for _, u := range unwatched {
		for _, name := range u.tests {
			name, _, _ = strings.Cut(name, "/")
			if !strings.Contains(all.String(), "\nfunc "+name+"(t *testing.T) {") {
				t.Errorf("%s is no test", name)
			}
		}
	}
}
