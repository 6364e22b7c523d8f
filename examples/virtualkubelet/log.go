package main

import (
	"fmt"
	"log/slog"

	vklog "github.com/virtual-kubelet/virtual-kubelet/log"
	vkslog "github.com/virtual-kubelet/virtual-kubelet/log/slog"
)

// logger is virtual-kubelet's adapter to slog, which panics (v1.12.0) where it is given an
// error or several words instead of one text. Virtual-kubelet itself does that, for example
// where its informer has ended before it adds a handler.
type logger struct{ vklog.Logger }

func newLogger(to *slog.Logger) vklog.Logger { return logger{vkslog.FromSlog(to)} }

func (l logger) Debug(args ...any) { l.Logger.Debug(fmt.Sprint(args...)) }
func (l logger) Info(args ...any)  { l.Logger.Info(fmt.Sprint(args...)) }
func (l logger) Warn(args ...any)  { l.Logger.Warn(fmt.Sprint(args...)) }
func (l logger) Error(args ...any) { l.Logger.Error(fmt.Sprint(args...)) }
func (l logger) Fatal(args ...any) { l.Logger.Fatal(fmt.Sprint(args...)) }

func (l logger) WithField(key string, value any) vklog.Logger {
	return logger{l.Logger.WithField(key, value)}
}

func (l logger) WithFields(fields vklog.Fields) vklog.Logger {
	return logger{l.Logger.WithFields(fields)}
}

func (l logger) WithError(err error) vklog.Logger { return logger{l.Logger.WithError(err)} }

// warnings logs what the API server warns of, such as a deprecated field, in the form of
// all else. client-go's own goes to klog.
type warnings struct{ log *slog.Logger }

// HandleWarningHeader takes one warning of an answer.
func (w warnings) HandleWarningHeader(code int, _ string, text string) {
	const miscellaneous = 299 // the only code that API servers use
	if code == miscellaneous && text != "" {
		w.log.Warn("the API server warns", "warning", text)
	}
}
