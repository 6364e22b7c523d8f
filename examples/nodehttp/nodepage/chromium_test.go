package nodepage

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// browserVar names the Chromium that shows the page to the tests that need a browser. They do not
// run without it. With screenshotsVar they leave pictures of the page in that directory.
const (
	browserVar     = "PODVOL_BROWSER"
	screenshotsVar = "PODVOL_SCREENSHOTS"
)

// browser is a Chromium with one tab, driven by its DevTools protocol over a pipe.
type browser struct {
	t       *testing.T
	to      io.Writer
	session string

	mu      sync.Mutex
	sent    int
	answers map[int]chan reply
	loaded  chan struct{}
	alarms  []string // what the page must not do
}

type reply struct {
	ID     int             `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  *struct {
		Message string `json:"message"`
	} `json:"error"`
}

// startBrowser starts a browser for one test; nil: none was asked for.
func startBrowser(t *testing.T) *browser {
	t.Helper()
	program := os.Getenv(browserVar)
	if program == "" {
		t.Logf("%s names no Chromium, so none looks at the page", browserVar)
		return nil
	}
	commands, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	from, answers, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	c := exec.Command(program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-breakpad",
		"--disable-crash-reporter", "--remote-debugging-pipe", "--user-data-dir="+home, "about:blank")
	c.ExtraFiles = []*os.File{commands, answers} // descriptors 3 and 4
	c.Env = append(os.Environ(), "HOME="+home, "TMPDIR="+home)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	commands.Close()
	answers.Close()
	b := &browser{t: t, to: to, answers: make(map[int]chan reply), loaded: make(chan struct{}, 1)}
	var reading sync.WaitGroup
	reading.Go(func() { b.read(from) })
	t.Cleanup(func() {
		b.send("", "Browser.close", nil)
		to.Close()
		_ = c.Wait()
		_ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL) // what it has left
		reading.Wait()
		from.Close()
	})
	b.open()
	return b
}

// open opens the tab.
func (b *browser) open() {
	var target struct{ TargetID string }
	var session struct{ SessionID string }
	b.call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	b.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &session)
	b.session = session.SessionID
	for _, domain := range []string{"Page", "Runtime", "Log", "Accessibility"} {
		b.call(domain+".enable", nil, nil)
	}
}

// read takes answers and events until the browser ends.
func (b *browser) read(from io.Reader) {
	messages := bufio.NewReader(from)
	for {
		text, err := messages.ReadBytes(0)
		if err != nil {
			return
		}
		var r reply
		if json.Unmarshal(bytes.TrimSuffix(text, []byte{0}), &r) != nil {
			continue
		}
		b.mu.Lock()
		if waiting := b.answers[r.ID]; waiting != nil {
			delete(b.answers, r.ID)
			waiting <- r
		}
		switch r.Method {
		case "Page.loadEventFired":
			select {
			case b.loaded <- struct{}{}:
			default:
			}
		case "Runtime.exceptionThrown", "Page.javascriptDialogOpening", "Log.entryAdded", "Runtime.consoleAPICalled":
			b.alarms = append(b.alarms, r.Method+": "+string(r.Params))
		}
		b.mu.Unlock()
	}
}

func (b *browser) send(session, method string, params map[string]any) <-chan reply {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sent++
	message := map[string]any{"id": b.sent, "method": method}
	if params != nil {
		message["params"] = params
	}
	if session != "" {
		message["sessionId"] = session
	}
	text, err := json.Marshal(message)
	if err != nil {
		b.t.Error(err)
	}
	answer := make(chan reply, 1)
	b.answers[b.sent] = answer
	if _, err := b.to.Write(append(text, 0)); err != nil {
		b.t.Error(err)
	}
	return answer
}

// call calls a method of the protocol, and decodes its result unless that is nil.
func (b *browser) call(method string, params map[string]any, result any) {
	b.t.Helper()
	select {
	case r := <-b.send(b.session, method, params):
		if r.Error != nil {
			b.t.Fatalf("%s: %s", method, r.Error.Message)
		}
		if result != nil {
			if err := json.Unmarshal(r.Result, result); err != nil {
				b.t.Fatalf("%s: %v", method, err)
			}
		}
	case <-time.After(time.Minute):
		b.t.Fatalf("%s has no answer", method)
	}
}

// show opens a URL in a window of a size, with a scheme of colours, and waits until it is there.
func (b *browser) show(url string, width, height int, scheme string) {
	b.t.Helper()
	b.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}, nil)
	b.call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]any{{"name": "prefers-color-scheme", "value": scheme}}}, nil)
	select {
	case <-b.loaded:
	default:
	}
	b.call("Page.navigate", map[string]any{"url": url}, nil)
	select {
	case <-b.loaded:
	case <-time.After(time.Minute):
		b.t.Fatalf("%s does not load", url)
	}
}

// eval is the value of an expression in the page, or of its promise.
func (b *browser) eval(expression string, value any) {
	b.t.Helper()
	var out struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails json.RawMessage
	}
	b.call("Runtime.evaluate", map[string]any{"expression": expression, "awaitPromise": true, "returnByValue": true}, &out)
	if out.ExceptionDetails != nil {
		b.t.Fatalf("%s: %s", expression, out.ExceptionDetails)
	}
	if value != nil {
		if err := json.Unmarshal(out.Result.Value, value); err != nil {
			b.t.Fatalf("%s is %s: %v", expression, out.Result.Value, err)
		}
	}
}

// until waits for a change of the document after which an expression is true.
func (b *browser) until(expression string) {
	b.t.Helper()
	b.eval(fmt.Sprintf(`new Promise((done) => {
		const look = () => { if (%s) { seen.disconnect(); done(); } };
		const seen = new MutationObserver(look);
		seen.observe(document, {subtree: true, childList: true, characterData: true, attributes: true});
		look();
	})`, expression), nil)
}

// press presses a key, such as Tab, or types one character.
func (b *browser) press(key string) {
	b.t.Helper()
	down := map[string]any{"type": "keyDown", "key": key}
	switch key {
	case "Tab":
		down["windowsVirtualKeyCode"] = 9
	case "Enter":
		down["windowsVirtualKeyCode"], down["text"] = 13, "\r"
	default:
		down["text"] = key
	}
	b.call("Input.dispatchKeyEvent", down, nil)
	b.call("Input.dispatchKeyEvent", map[string]any{"type": "keyUp", "key": key}, nil)
}

// calm fails the test if the page broke its policy, threw, complained or opened a dialogue.
func (b *browser) calm() {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.alarms) > 0 {
		b.t.Errorf("the page did\n%s", strings.Join(b.alarms, "\n"))
	}
}

// shoot leaves a picture of the whole page, if that was asked for.
func (b *browser) shoot(name string) {
	b.t.Helper()
	dir := os.Getenv(screenshotsVar)
	if dir == "" {
		return
	}
	var shot struct{ Data string }
	b.call("Page.captureScreenshot", map[string]any{"captureBeyondViewport": true}, &shot)
	picture, err := base64.StdEncoding.DecodeString(shot.Data)
	if err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name+".png"), picture, 0o644); err != nil {
		b.t.Fatal(err)
	}
}
