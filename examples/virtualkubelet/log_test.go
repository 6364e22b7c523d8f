package main

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	vklog "github.com/virtual-kubelet/virtual-kubelet/log"
)

// Each level takes errors and several words, also of a logger with fields.
func TestTheLoggerTakesErrors(t *testing.T) {
	var out bytes.Buffer
	l := newLogger(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})))
	with := l.WithField("pod", "web").WithFields(vklog.Fields{"node": "edge"}).WithError(errors.New("broken"))
	for level, log := range map[string]func(vklog.Logger, ...any){
		"DEBUG": vklog.Logger.Debug, "INFO": vklog.Logger.Info, "WARN": vklog.Logger.Warn, "ERROR": vklog.Logger.Error, "ERROR+4": vklog.Logger.Fatal,
	} {
		out.Reset()
		log(l, errors.New("it has ended"))
		log(l, "text ", 3)
		log(with, errors.New("it has ended"))
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if len(lines) != 3 || !strings.Contains(lines[0], `msg="it has ended"`) || !strings.Contains(lines[1], `msg="text 3"`) ||
			!strings.Contains(lines[2], "pod=web") || !strings.Contains(lines[2], "node=edge") || !strings.Contains(lines[2], "error=broken") {
			t.Errorf("%s: %q", level, lines)
		}
		for _, line := range lines {
			if !strings.Contains(line, "level="+level) {
				t.Errorf("%s: %q", level, line)
			}
		}
	}
}
