// Package podexectest simulates an API server and a kubelet that execute commands in pods.
package podexectest

import (
	"encoding/json"
	"io"
	"net/http"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
	"k8s.io/streaming/pkg/httpstream/wsstream"
)

// Program is a program in a container. It returns an exit code.
type Program func(command []string, stdout, stderr io.Writer) int

// Serve answers a request for pods/exec, over a websocket or SPDY.
func Serve(w http.ResponseWriter, r *http.Request, program Program) {
	streams, end := open(w, r)
	if streams == nil {
		return
	}
	defer end()
	code := program(r.URL.Query()["command"], streams["stdout"], streams["stderr"])
	status := metav1.Status{Status: metav1.StatusSuccess}
	if code != 0 {
		status = metav1.Status{Status: metav1.StatusFailure, Reason: remotecommand.NonZeroExitCodeReason,
			Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: remotecommand.ExitCodeCauseType, Message: strconv.Itoa(code)}}}}
	}
	_ = json.NewEncoder(streams["error"]).Encode(status) // the client may be gone
}

// open returns the streams of a request by name. If it cannot open them, it answers the request and returns nil.
func open(w http.ResponseWriter, r *http.Request) (streams map[string]io.Writer, end func()) {
	if wsstream.IsWebSocketRequest(r) {
		const read, write = wsstream.IgnoreChannel, wsstream.WriteChannel
		conn := wsstream.NewConn(map[string]wsstream.ChannelProtocolConfig{
			remotecommand.StreamProtocolV5Name: {Binary: true, Channels: []wsstream.ChannelType{read, write, write, write, read}}})
		_, all, err := conn.Open(w, r)
		if err != nil {
			return nil, nil
		}
		return map[string]io.Writer{"stdout": all[1], "stderr": all[2], "error": all[3]}, func() { _ = conn.Close() }
	}
	if _, err := httpstream.Handshake(r, w, []string{remotecommand.StreamProtocolV4Name}); err != nil {
		return nil, nil
	}
	// As in a kubelet, the program starts when the client has the reply to each stream. The client reads no output before, which would hold up
	// the reply.
	type stream struct {
		httpstream.Stream
		replied <-chan struct{}
	}
	created := make(chan stream, 3)
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(s httpstream.Stream, replied <-chan struct{}) error {
		created <- stream{s, replied}
		return nil
	})
	if conn == nil {
		return nil, nil
	}
	streams = map[string]io.Writer{}
	for range 3 {
		select {
		case s := <-created:
			<-s.replied
			streams[s.Headers().Get("streamType")] = s.Stream
		case <-conn.CloseChan():
			return nil, nil
		}
	}
	return streams, func() {
		for _, s := range streams {
			_ = s.(httpstream.Stream).Close()
		}
		<-conn.CloseChan() // the client has read everything
	}
}
