package podlife

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// The handlers of probes and hooks. Each ends with ctx.

// hook runs a hook, whose output is not kept.
func (r *run) hook(ctx context.Context, h *v1.LifecycleHandler) error {
	switch {
	case h.Exec != nil:
		return r.exec(ctx, h.Exec.Command, 0)
	case h.HTTPGet != nil:
		return r.get(ctx, h.HTTPGet, "kube-lifecycle")
	case h.Sleep != nil:
		timer := time.NewTimer(secondsOf(h.Sleep.Seconds))
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

func (r *run) exec(ctx context.Context, command []string, timeout time.Duration) error {
	output, code, err := r.it.Exec(ctx, command, timeout)
	switch {
	case err != nil:
		return err
	case code != 0:
		return fmt.Errorf("command %q exited with %d: %s", command, code, shortened(output))
	}
	return nil
}

// shortened is the begin of a text, of whole characters: statuses and events are UTF-8.
func shortened(text string) string {
	if most := 1024; len(text) > most {
		for most > 0 && !utf8.RuneStart(text[most]) {
			most--
		}
		text = text[:most]
	}
	return strings.TrimSpace(strings.ToValidUTF8(text, "\uFFFD"))
}

// address returns host and port of a handler: the pod's, unless it names another one.
func (r *run) address(host string, port intstr.IntOrString) (string, error) {
	if host == "" {
		host = r.life.snapshot().Status.PodIP
	}
	number := port.IntValue()
	if port.Type == intstr.String {
		for _, p := range r.spec.Ports {
			if p.Name == port.StrVal {
				number = int(p.ContainerPort)
			}
		}
	}
	if number <= 0 || number > 65535 {
		return "", fmt.Errorf("container %s has no port %s", r.spec.Name, port.String())
	}
	return net.JoinHostPort(host, strconv.Itoa(number)), nil
}

// get is well with any answer from 200 to 399. Certificates are not looked at, as the
// API says.
func (r *run) get(ctx context.Context, h *v1.HTTPGetAction, agent string) error {
	address, err := r.address(h.Host, h.Port)
	if err != nil {
		return err
	}
	where, err := url.Parse(h.Path)
	if err != nil {
		return err
	}
	where.Scheme, where.Host = strings.ToLower(string(h.Scheme)), address
	if where.Scheme == "" {
		where.Scheme = "http"
	}
	if !strings.HasPrefix(where.Path, "/") {
		where.Path = "/" + where.Path
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, where.String(), nil)
	if err != nil {
		return err
	}
	request.Header.Set("User-Agent", agent+"/podvol")
	request.Header.Set("Accept", "*/*")
	for _, header := range h.HTTPHeaders {
		if http.CanonicalHeaderKey(header.Name) == "Host" {
			request.Host = header.Value
			continue
		}
		request.Header.Add(header.Name, header.Value)
	}
	transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	client := &http.Client{Transport: transport, CheckRedirect: func(next *http.Request, via []*http.Request) error {
		if next.URL.Hostname() != via[0].URL.Hostname() || len(via) > 10 {
			return http.ErrUseLastResponse
		}
		return nil
	}}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(response.Body, 1024))
	if response.StatusCode < 200 || response.StatusCode >= 400 {
		return fmt.Errorf("HTTP probe failed with statuscode: %d: %s", response.StatusCode, shortened(string(body)))
	}
	return nil
}

func (r *run) dial(ctx context.Context, host string, port intstr.IntOrString) error {
	address, err := r.address(host, port)
	if err != nil {
		return err
	}
	connection, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return connection.Close()
}

// health asks gRPC's health service.
func (r *run) health(ctx context.Context, h *v1.GRPCAction) error {
	address, err := r.address("", intstr.FromInt32(h.Port))
	if err != nil {
		return err
	}
	connection, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	request := &grpc_health_v1.HealthCheckRequest{}
	if h.Service != nil {
		request.Service = *h.Service
	}
	answer, err := grpc_health_v1.NewHealthClient(connection).Check(ctx, request)
	if err != nil {
		return err
	}
	if answer.Status != grpc_health_v1.HealthCheckResponse_SERVING {
		return fmt.Errorf("the service answers %s", answer.Status)
	}
	return nil
}
