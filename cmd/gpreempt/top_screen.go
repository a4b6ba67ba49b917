package main

import (
	"context"
	"os"
	"syscall"
	"time"

	"github.com/gdamore/tcell/v2"

	"github.com/gpreempt/gpreempt/configs"
)

// taken is a sample, or why there is none.
type taken struct {
	sample sample
	err    error
}

// sampler takes samples until ctx is done. It does so beside the screen, since members of a segment may be slow to answer.
func sampler(ctx context.Context, config configs.Config, interval time.Duration) <-chan taken {
	samples := make(chan taken)
	go func() {
		ticker := time.NewTicker(interval)
		defer ticker.Stop()
		for of := (taker{config: config}); ; {
			var t taken
			t.sample, t.err = of.take(ctx)
			select {
			case <-ctx.Done():
				return
			case samples <- t:
			}
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
		}
	}()
	return samples
}

// openScreen takes the terminal; nil if it is one that cannot be drawn on.
func openScreen() tcell.Screen {
	if os.Getenv("TERM") == "dumb" {
		return nil
	}
	screen, err := tcell.NewScreen()
	if err != nil || screen.Init() != nil {
		return nil
	}
	return screen
}

// topScreen is top on a terminal.
func topScreen(ctx context.Context, screen tcell.Screen, config configs.Config, interval time.Duration) error {
	defer screen.Fini()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ramp := dots
	if screen.CharacterSet() == "UTF-8" {
		ramp = blocks
	}
	v := newView(interval, ramp)
	events, quit := make(chan tcell.Event), make(chan struct{})
	defer close(quit)
	go screen.ChannelEvents(events, quit)
	samples := sampler(ctx, config, interval)
	for first := true; ; {
		select {
		case <-ctx.Done():
			return nil
		case t := <-samples:
			if t.err != nil && first {
				return t.err
			}
			first = false
			if v.said = t.err; t.err == nil {
				v.take(t.sample)
			}
		case event, more := <-events:
			if !more || v.event(screen, event) {
				return nil
			}
		}
		v.draw(screen)
	}
}

// event carries out an event of the terminal.
func (v *view) event(screen tcell.Screen, event tcell.Event) (quit bool) {
	switch e := event.(type) {
	case *tcell.EventResize:
		screen.Sync()
	case *tcell.EventError:
		return true // the terminal is gone
	case *tcell.EventKey:
		_, height := screen.Size()
		switch e.Key() {
		case tcell.KeyCtrlC, tcell.KeyEscape:
			return true
		case tcell.KeyCtrlZ:
			pause(screen)
		case tcell.KeyCtrlL:
			screen.Sync()
		case tcell.KeyUp:
			v.move(-1)
		case tcell.KeyDown:
			v.move(1)
		case tcell.KeyPgUp:
			v.move(-height)
		case tcell.KeyPgDn:
			v.move(height)
		case tcell.KeyEnter:
			v.enter()
		case tcell.KeyRune:
			return v.key(e.Rune())
		}
	}
	return false
}

// pause gives the terminal back until the shell lets this process go on.
func pause(screen tcell.Screen) {
	if screen.Suspend() != nil {
		return
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGTSTP)
	_ = screen.Resume()
}

func styleOf(l look) tcell.Style {
	switch l {
	case bold:
		return tcell.StyleDefault.Bold(true)
	case dim:
		return tcell.StyleDefault.Dim(true)
	case inverse:
		return tcell.StyleDefault.Reverse(true)
	case warning:
		return tcell.StyleDefault.Bold(true).Foreground(tcell.ColorMaroon)
	}
	return tcell.StyleDefault
}

func (v *view) draw(screen tcell.Screen) {
	screen.Clear()
	for y, spans := range v.lines(screen.Size()) {
		x := 0
		for _, s := range spans {
			for _, r := range s.text {
				screen.SetContent(x, y, r, nil, styleOf(s.look))
				x++
			}
		}
	}
	screen.Show()
}
