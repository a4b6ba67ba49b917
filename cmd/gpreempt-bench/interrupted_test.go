package main

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// An interruption ends the daemon of a rival, too, and what that started.
func TestBenchIsInterruptedBesideADaemon(t *testing.T) {
	folder := t.TempDir()
	socket, pids := filepath.Join(folder, "run", "socket"), filepath.Join(folder, "pids")
	for name, text := range map[string]string{
		"daemon": `#!/usr/bin/env python3
import os, socket, subprocess
with open("` + pids + `", "w") as file:
    file.write("%d %d" % (os.getpid(), subprocess.Popen(["sleep", "1000"]).pid))
os.mkdir("` + filepath.Dir(socket) + `")
server = socket.socket(socket.AF_UNIX)
server.bind("` + socket + `")
server.listen()
server.accept()
`,
		"served.toml": `about = "with a daemon"
[needs]
files = ["daemon"]
[daemon]
command = ["daemon"]
ready = "` + socket + `"
`,
	} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for signal, status := range map[syscall.Signal]int{syscall.SIGINT: 130, syscall.SIGTERM: 143} {
		command := exec.Command(built+"/gpreempt-bench", "--suite", "smoke", "--systems", "default,"+filepath.Join(folder, "served.toml"),
			"--rivals", folder, "--seconds", "60", "--busy", "--out", filepath.Join(folder, "out"), "--library", "../../build/libgpreempt.so")
		command.Env = append(os.Environ(), simulated(t)...)
		stderr, err := command.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := command.Start(); err != nil {
			t.Fatal(err)
		}
		said, served := "", false
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			said += lines.Text() + "\n"
			if strings.Contains(lines.Text(), "processes, started in") {
				_, err := os.Lstat(socket)
				served = err == nil
				if err := command.Process.Signal(signal); err != nil {
					t.Fatal(err)
				}
			}
		}
		_ = command.Wait() // the status says how it went
		if got := command.ProcessState.ExitCode(); got != status || !served {
			t.Errorf("%v: status %d, served %v: %s", signal, got, served, said)
		}
		text, err := os.ReadFile(pids)
		if err != nil {
			t.Fatal(err)
		}
		for pid := range strings.FieldsSeq(string(text)) {
			for deadline := time.Now().Add(time.Minute); runs(pid); {
				if time.Now().After(deadline) {
					t.Fatalf("%v: process %s runs on", signal, pid)
				}
				runtime.Gosched()
			}
		}
		if _, err := os.Lstat(filepath.Dir(socket)); err == nil {
			t.Errorf("%v: the daemon's socket is still there", signal)
		}
	}
}

// runs says whether a process is there and no zombie.
func runs(pid string) bool {
	if _, err := strconv.Atoi(pid); err != nil {
		return false
	}
	status, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
	return err == nil && !strings.Contains(string(status), ") Z ")
}
