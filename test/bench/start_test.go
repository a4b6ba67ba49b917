package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A process is killed with the thread that started it. A goroutine that locks itself to its thread and ends takes that along, whatever other
// goroutines started there.
func TestAProcessOutlivesTheThreadThatAsksForIt(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, "cat")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	thread, failed, over := make(chan int, 1), make(chan error, 1), make(chan struct{})
	defer close(over)
	var ask func()
	ask = func() {
		runtime.LockOSThread()
		if unix.Gettid() == os.Getpid() { // the first thread does not end
			go ask()
			<-over
			return
		}
		failed <- startChild(cmd)
		thread <- unix.Gettid()
	}
	go ask()
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
	task := fmt.Sprintf("/proc/self/task/%d", <-thread)
	for { // until it is gone
		if _, err := os.Stat(task); errors.Is(err, os.ErrNotExist) {
			break
		}
		if ctx.Err() != nil {
			t.Fatal("the thread does not end")
		}
		runtime.Gosched()
	}
	fmt.Fprintln(in, "alive")
	line, err := bufio.NewReader(out).ReadString('\n')
	in.Close()
	ended := cmd.Wait()
	if line != "alive\n" || err != nil || ended != nil {
		t.Errorf("%q, %v; it ended: %v", line, err, ended)
	}
}
