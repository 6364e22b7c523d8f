package apiserver_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/podvol/podvol/util/testenv/apiserver"
	"github.com/podvol/podvol/util/testenv/noleak"
)

func TestMain(m *testing.M) { noleak.Main(m) }

// kubeconfig is what a test reads of one.
type kubeconfig struct {
	Clusters []struct {
		Cluster struct {
			Server string
			CA     []byte `json:"certificate-authority-data"`
		}
	}
	Users []struct {
		User struct {
			Certificate []byte `json:"client-certificate-data"`
			Key         []byte `json:"client-key-data"`
		}
	}
}

// who asks the server as a user whom it takes the user for.
func who(t *testing.T, config []byte) string {
	t.Helper()
	var c kubeconfig
	if err := json.Unmarshal(config, &c); err != nil {
		t.Fatal(err)
	}
	user, cluster := c.Users[0].User, c.Clusters[0].Cluster
	pair, err := tls.X509KeyPair(user.Certificate, user.Key)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(cluster.CA)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}}}}
	review := `{"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}`
	response, err := client.Post(cluster.Server+"/apis/authentication.k8s.io/v1/selfsubjectreviews", "application/json", strings.NewReader(review))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	said, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(said)
}

func TestAServerKnowsItsUsersAndComesBack(t *testing.T) {
	apiserver.Run(t, apiserver.Config{}, func(t *testing.T, s *apiserver.Server) {
		node := s.Kubeconfig(t, "system:node:n1", "system:nodes")
		for range 2 {
			if said := who(t, node); !strings.Contains(said, `"system:node:n1"`) || !strings.Contains(said, `"system:nodes"`) {
				t.Errorf("the server says %s", said)
			}
			s.Kill(t)
			s.Start(t)
		}
		if said := who(t, s.Admin(t)); !strings.Contains(said, `"system:masters"`) {
			t.Errorf("the server says %s", said)
		}
	})
}

// victimVar makes the victim run; the test that sets it runs it in a further
// process.
const victimVar = "APISERVER_VICTIM"

func TestVictim(t *testing.T) {
	if os.Getenv(victimVar) == "" {
		return
	}
	apiserver.Run(t, apiserver.Config{}, func(t *testing.T, _ *apiserver.Server) { t.Error("it runs") })
}

func victim(t *testing.T, assets string) (string, error) {
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestVictim$", "-test.v=true")
	cmd.Env = append(os.Environ(), victimVar+"=1", "KUBEBUILDER_ASSETS="+assets)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestNotAsked(t *testing.T) {
	out, err := victim(t, "")
	if err != nil || strings.Contains(out, "SKIP") || !strings.Contains(out, "not run: set KUBEBUILDER_ASSETS") {
		t.Errorf("err = %v, want success without a skip:\n%s", err, out)
	}
}

func TestAskedAndUnavailable(t *testing.T) {
	out, err := victim(t, t.TempDir())
	if err == nil || !strings.Contains(out, "KUBEBUILDER_ASSETS must name") {
		t.Errorf("err = %v, want a failure that says why:\n%s", err, out)
	}
}

func TestAFailureShowsWhatTheServerHasSaid(t *testing.T) {
	assets := t.TempDir()
	if err := os.WriteFile(filepath.Join(assets, "etcd"), []byte("#!/bin/sh\necho the disk is full\nexit 3\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	out, err := victim(t, assets)
	if err == nil || !strings.Contains(out, "etcd has ended: exit status 3") || !strings.Contains(out, "the disk is full") {
		t.Errorf("err = %v, want a failure that says why:\n%s", err, out)
	}
}
