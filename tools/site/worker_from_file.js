// Search in a page that was opened from disk: there a browser starts no Worker. This one runs the
// script of a worker in a hidden frame. Pages that come over HTTP keep the browser's own.
if (location.protocol === "file:") {
  const later = (call) => setTimeout(call, 0); // as a worker answers: never within a call
  window.Worker = class {
    constructor(url) {
      this.onmessage = null;
      const script = document.createElement("script");
      script.src = new URL(url, location.href).href;
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.ready = new Promise((resolve) => {
        this.frame.addEventListener("load", () => {
          const inner = this.frame.contentWindow;
          inner.postMessage = (message) => {
            const data = structuredClone(message);
            later(() => this.onmessage && this.onmessage({ data }));
          };
          script.onload = () => resolve(inner);
          inner.document.body.append(inner.document.adoptNode(script));
        }, { once: true });
      });
      this.frame.srcdoc = "<!doctype html><body></body>";
      document.documentElement.append(this.frame);
    }
    postMessage(message) {
      const data = structuredClone(message);
      this.ready.then((inner) =>
        later(() => inner.dispatchEvent(new inner.MessageEvent("message", { data })))
      );
    }
    terminate() {
      this.frame.remove();
    }
  };
}
