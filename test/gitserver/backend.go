package gitserver

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/textproto"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// findBackend returns the path of the CGI program that is part of git.
var findBackend = sync.OnceValues(func() (string, error) {
	out, err := exec.Command("git", "--exec-path").Output()
	if err != nil {
		return "", fmt.Errorf("git server: it needs the git program: %w", err)
	}
	path := filepath.Join(strings.TrimSpace(string(out)), "git-http-backend")
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("git server: this git comes without http-backend: %w", err)
	}
	return path, nil
})

// silentLog drops net/http's messages about connections that were cut on purpose.
func silentLog() *log.Logger { return log.New(io.Discard, "", 0) }

// serveGit lets git answer a request, subject to faults and refused features.
func (s *Server) serveGit(rec *recorder, r *http.Request, faults []*Fault, refuse Feature) {
	body := io.Reader(r.Body)
	if rec.Service == UploadPack && refuse != 0 {
		checked, complaint, err := s.checkUploadPack(r, rec.Repo, refuse)
		if err != nil {
			http.Error(rec, err.Error(), http.StatusBadRequest)
			return
		}
		if complaint != "" {
			rec.Header().Set("Content-Type", "application/x-git-upload-pack-result")
			_, _ = rec.Write(pktLine("ERR upload-pack: " + complaint))
			return
		}
		body = checked
	}
	out := newLimitWriter(r.Context(), rec, faults)
	rewrites := rewritesOf(faults)
	if rec.Service == Advertisement && refuse != 0 {
		rewrites = append(rewrites, refuse.strip)
	}
	s.runBackend(rec, r, body, out, refuse, rewrites)
}

// runBackend runs git in its own process group. It starts the program that git http-backend would start, because the start of a process takes
// most of the time of a small answer. Rare requests go to http-backend itself, as a CGI program. net/http/cgi hides the process, so that a hung
// process could not be killed together with its children. TestSameAsHTTPBackend compares the answers.
func (s *Server) runBackend(rec *recorder, r *http.Request, body io.Reader, out io.Writer, refuse Feature, rewrites []func([]byte) []byte) {
	ctx, cancel := context.WithCancel(r.Context())
	defer func() {
		cancel()
		if r.Context().Err() != nil { // the output of a killed git must not look like a complete answer
			panic(http.ErrAbortHandler)
		}
	}()
	var stderr bytes.Buffer
	args, direct := s.service(rec, r)
	cmd := exec.CommandContext(ctx, s.backend)
	if direct {
		cmd = exec.CommandContext(ctx, "git", args...)
		cmd.Dir = filepath.Join(s.root, filepath.FromSlash(rec.Repo))
	}
	cmd.Env = s.backendEnv(r, body, refuse)
	cmd.Stdin = body
	cmd.Stderr = &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		http.Error(rec, err.Error(), http.StatusInternalServerError)
		return
	}
	defer func() {
		cancel()                           // if the client or a fault ended the answer early, git must end too
		_, _ = io.Copy(io.Discard, stdout) // Wait knows only the first process; the pipe ends with the last one
		_ = cmd.Wait()
		rec.Backend = strings.TrimSpace(stderr.String())
	}()
	reader := bufio.NewReaderSize(stdout, 64<<10)
	answer, status := io.Reader(reader), http.StatusOK
	if direct {
		answer = io.MultiReader(bytes.NewReader(beginAnswer(rec, r, refuse)), reader)
	} else if status, err = readCGIHeader(rec, reader); err != nil {
		http.Error(rec, "git http-backend gave no answer", http.StatusBadGateway)
		return
	}
	if len(rewrites) == 0 {
		rec.WriteHeader(status)
		_ = copyFlushed(out, answer, rec)
		return
	}
	content, err := io.ReadAll(io.LimitReader(answer, maxRewrite))
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	for _, rewrite := range rewrites {
		content = rewrite(content)
	}
	rec.Header().Del("Content-Length")
	rec.WriteHeader(status)
	_, _ = out.Write(content)
}

// service returns the arguments of the git command that answers a request, or false if http-backend answers.
func (s *Server) service(rec *recorder, r *http.Request) (args []string, direct bool) {
	if !filepath.IsLocal(rec.Repo) || r.Header.Get("Content-Encoding") != "" {
		return nil, false
	}
	if _, err := os.Stat(filepath.Join(s.root, rec.Repo, "HEAD")); err != nil {
		return nil, false
	}
	service := string(ReceivePack)
	if rec.Service == Advertisement || rec.Service == UploadPack {
		service = string(UploadPack)
	}
	asks := strings.HasSuffix(r.URL.Path, "/info/refs")
	switch {
	case rec.Service == Other || service == string(ReceivePack) && !s.pushes:
		return nil, false
	case asks && r.Method == http.MethodGet:
		return []string{service, "--http-backend-info-refs", "."}, true
	case !asks && r.Method == http.MethodPost && r.Header.Get("Content-Type") == "application/x-git-"+service+"-request":
		return []string{service, "--stateless-rpc", "."}, true
	}
	return nil, false
}

// beginAnswer sets the header of an answer as http-backend does, and returns what precedes the output of the git command.
func beginAnswer(rec *recorder, r *http.Request, refuse Feature) []byte {
	rec.Header().Set("Expires", "Fri, 01 Jan 1980 00:00:00 GMT")
	rec.Header().Set("Pragma", "no-cache")
	rec.Header().Set("Cache-Control", "no-cache, max-age=0, must-revalidate")
	if !strings.HasSuffix(r.URL.Path, "/info/refs") {
		rec.Header().Set("Content-Type", strings.TrimSuffix(r.Header.Get("Content-Type"), "-request")+"-result")
		return nil
	}
	service := r.URL.Query().Get("service")
	rec.Header().Set("Content-Type", "application/x-"+service+"-advertisement")
	if strings.Contains(gitProtocol(r, refuse), "version=2") {
		return nil
	}
	return append(pktLine("# service="+service+"\n"), "0000"...)
}

// readCGIHeader reads the header of a CGI program's output into the answer, and returns the status.
func readCGIHeader(rec *recorder, reader *bufio.Reader) (status int, err error) {
	header, err := textproto.NewReader(reader).ReadMIMEHeader()
	if err != nil {
		return 0, err
	}
	status = http.StatusOK
	if s := header.Get("Status"); s != "" {
		code, _, _ := strings.Cut(s, " ")
		if status, err = strconv.Atoi(code); err != nil {
			status = http.StatusBadGateway
		}
		header.Del("Status")
	}
	for key, values := range header {
		rec.Header()[key] = values
	}
	return status, nil
}

// gitProtocol returns the protocol that git speaks with the client. Protocol v2 cannot express that a server lacks thin packs or shallow
// fetches, so such a server speaks v0.
func gitProtocol(r *http.Request, refuse Feature) string {
	if refuse != 0 {
		return ""
	}
	return r.Header.Get("Git-Protocol")
}

// maxRewrite is the maximum size of an answer that a Fault can rewrite, in bytes.
const maxRewrite = 256 << 20

// backendEnv returns the whole environment of git and of git http-backend. Git reads no configuration of the machine, and the
// settings here override those of the repository.
func (s *Server) backendEnv(r *http.Request, body io.Reader, refuse Feature) []string {
	settings := [][2]string{
		{"uploadpack.allowFilter", strconv.FormatBool(refuse&Filter == 0)},
		{"uploadpack.allowAnySHA1InWant", strconv.FormatBool(refuse&SHAWants == 0)},
		{"http.getanyfile", "false"},
		{"http.receivepack", strconv.FormatBool(s.pushes)},
		{"safe.directory", "*"},
	}
	env := append(Env(),
		"GATEWAY_INTERFACE=CGI/1.1",
		"SERVER_PROTOCOL="+r.Proto,
		"REQUEST_METHOD="+r.Method,
		"QUERY_STRING="+r.URL.RawQuery,
		"CONTENT_TYPE="+r.Header.Get("Content-Type"),
		"HTTP_CONTENT_ENCODING="+r.Header.Get("Content-Encoding"),
		"REMOTE_ADDR="+r.RemoteAddr,
		"GIT_PROJECT_ROOT="+s.root,
		"PATH_INFO="+r.URL.Path,
		"GIT_HTTP_EXPORT_ALL=1",
	)
	env = append(env, configEnv(settings...)...)
	if checked, ok := body.(*bytes.Reader); ok {
		env = append(env, "CONTENT_LENGTH="+strconv.Itoa(checked.Len()), "HTTP_CONTENT_ENCODING=")
	} else if r.ContentLength >= 0 {
		env = append(env, "CONTENT_LENGTH="+strconv.FormatInt(r.ContentLength, 10))
	}
	if protocol := gitProtocol(r, refuse); protocol != "" {
		env = append(env, "HTTP_GIT_PROTOCOL="+protocol, "GIT_PROTOCOL="+protocol)
	}
	return env
}

// copyFlushed copies r to w and flushes each piece, so that keep-alive packets reach the client while git counts objects.
func copyFlushed(w io.Writer, r io.Reader, flusher http.Flusher) error {
	buf := make([]byte, 64<<10)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			if _, werr := w.Write(buf[:n]); werr != nil {
				return werr
			}
			flusher.Flush()
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
