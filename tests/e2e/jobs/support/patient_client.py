"""Run in a pod: asks a URL ten times a second, with a new connection each time, and says how often it had to ask again."""

import json
import sys
import time
import urllib.request

url, token, seconds = sys.argv[1:]
request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
answers, tried_again, given_up = 0, [], []
end = time.monotonic() + float(seconds)
while time.monotonic() < end:
    for attempt in range(5):
        try:
            with urllib.request.urlopen(request, timeout=3) as reply:
                reply.read()
            answers += 1
            if answers == 1:
                print(reply.status, flush=True)
            break
        except OSError as error:
            (given_up if attempt == 4 else tried_again).append(repr(error))
            time.sleep(0.3)
    time.sleep(0.1)
print(json.dumps({"answers": answers, "tried_again": tried_again, "given_up": given_up}))
